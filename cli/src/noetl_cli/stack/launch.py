"""Start the process that a spec describes."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from noetl_cli.failures import StackError
from noetl_cli.stack import owners
from noetl_cli.stack.specs import ProcessSpec

# prctl(2): deliver a signal to this process when its parent ends.
PR_SET_PDEATHSIG = 1


def arguments(spec: ProcessSpec, *, environ: Mapping[str, str]) -> dict[str, Any]:
    """Give what `subprocess` and `asyncio` alike need besides the command itself."""
    return {
        "cwd": spec.directory,
        "env": {**environ, **spec.environ},
        "stdin": subprocess.DEVNULL,
        # A Ctrl-C in the terminal is for the supervisor alone, which ends the rest in order.
        "start_new_session": True,
        **owners.as_owner(spec.owner),
    }


def server_environ(spec: ProcessSpec, *, path: str) -> dict[str, str]:
    """Give a server nothing of the user's environment and no home that holds settings."""
    return {"PATH": path, "HOME": str(spec.directory), "TZ": "UTC"}


def open_log(path: Path) -> int:
    """Open a log for appending and return its file descriptor; raises a `StackError`."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StackError(
            f"The log {path} cannot be opened: {error.strerror or error}.",
            way_out="Check that its disk has room and that the folder is writable.",
        ) from error


def start(
    spec: ProcessSpec, *, environ: Mapping[str, str], log: Path, dies_with_parent: bool = False
) -> subprocess.Popen[bytes]:
    """Start one process that writes to `log`."""
    handle = open_log(log)
    prepare_child = _die_with(os.getpid()) if dies_with_parent else None
    try:
        return subprocess.Popen(  # noqa: S603 - argv comes from our own specs
            spec.argv,
            stdout=handle,
            stderr=handle,
            preexec_fn=prepare_child,  # noqa: PLW1509 - only tests ask for it, from one thread
            **arguments(spec, environ=environ),
        )
    except OSError as error:
        raise not_started(spec, error) from error
    finally:
        os.close(handle)


def not_started(spec: ProcessSpec, error: OSError) -> StackError:
    """Say why a program did not even start."""
    return StackError(
        f"{spec.name} could not be started: {error.strerror or error}: {spec.argv[0]}",
        way_out="Check that the program exists and may be executed.",
    )


def _die_with(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arrange() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return arrange
