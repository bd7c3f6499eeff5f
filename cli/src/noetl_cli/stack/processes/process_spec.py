"""Describes a process of the stack: its command, readiness probe and operating system user."""

import ctypes
import os
import pwd
import signal
import subprocess
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from noetl_cli.errors import StackError

UNPRIVILEGED = "nobody"
PROBE_TIMEOUT_S = 20


class ProcessUser(Struct, frozen=True, kw_only=True):
    """A user id and its group."""

    uid: int
    gid: int


def find_unprivileged_user() -> ProcessUser | None:
    """Name the user to run as when we are root; `None` when we are not."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(UNPRIVILEGED)
    except KeyError as error:
        raise StackError(
            f"PostgreSQL refuses to run as root and there is no user {UNPRIVILEGED!r}.",
            way_out="Run noetl as an ordinary user, or create that user.",
        ) from error
    return ProcessUser(uid=entry.pw_uid, gid=entry.pw_gid)


def build_user_arguments(owner: ProcessUser | None) -> dict[str, Any]:
    """Give the `subprocess` arguments that start a child as this user."""
    if owner is None:
        return {}
    return {"user": owner.uid, "group": owner.gid, "extra_groups": []}


def can_enter(owner: ProcessUser | None, directory: Path) -> bool:
    """Ask the operating system, as that user, whether a path below can be opened."""
    return _runs_as_user(owner, ["/bin/sh", "-c", 'test -x "$0"', str(directory)])


def can_run(owner: ProcessUser | None, program: Path) -> bool:
    """Ask the operating system, as that user, whether a program starts."""
    return _runs_as_user(owner, [str(program), "--version"])


def change_owner(path: Path, owner: ProcessUser | None) -> None:
    """Hand one path over, never its parents."""
    if owner is not None:
        os.chown(path, owner.uid, owner.gid)


def _runs_as_user(owner: ProcessUser | None, argv: list[str]) -> bool:
    try:
        process = subprocess.run(  # noqa: S603 - argv is built above from known programs
            argv,
            check=False,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
            **build_user_arguments(owner),
        )
    except PermissionError:
        return False
    return process.returncode == 0


class HttpProbe(Struct, frozen=True, kw_only=True):
    """Ready when this address answers 200."""

    url: str


class CommandProbe(Struct, frozen=True, kw_only=True):
    """Ready when this command ends with 0."""

    argv: tuple[str, ...]


class NatsProbe(Struct, frozen=True, kw_only=True):
    """Ready once the server says that it and every stream work; `url` is its own account's."""

    url: str


class BucketProbe(Struct, frozen=True, kw_only=True):
    """Ready when an object can be put into this bucket, which is made when it is missing.

    So are the `other_buckets`.
    """

    endpoint: str
    bucket: str
    region: str
    access_key: str
    secret_key: str
    other_buckets: tuple[str, ...] = ()


Probe = HttpProbe | CommandProbe | BucketProbe | NatsProbe


class StoreWatch(Struct, frozen=True, kw_only=True):
    """Stuck when this probe is refused, time and again, although this folder's disk has room."""

    probe: NatsProbe
    folder: Path
    interval_s: float


class ProcessTier(IntEnum):
    """What starts first and stops last."""

    SERVER = 0
    SERVICE = 1


class ProcessSpec(Struct, frozen=True, kw_only=True):
    """One process: the supervisor and the tests start it from this value alone."""

    name: str
    tier: ProcessTier
    argv: tuple[str, ...]
    directory: Path
    environ: dict[str, str] = {}
    owner: ProcessUser | None = None
    # Done before each start, the ones after a crash included; a `StackError` delays the start.
    before_start: Callable[[], None] | None = None
    probe: Probe | None = None
    # Looked at for as long as the process runs: one that is stuck is started again.
    watch: StoreWatch | None = None
    port: int | None = None
    health_url: str | None = None
    stop_signal: int = signal.SIGTERM
    # Ends it at once where its data is deleted next; None where ending takes no time.
    discard_signal: int | None = None
    stop_timeout_s: float = 15.0
    ready_timeout_s: float = 60.0


# prctl(2): deliver a signal to this process when its parent ends.
PR_SET_PDEATHSIG = 1


def build_process_arguments(spec: ProcessSpec, *, environ: Mapping[str, str]) -> dict[str, Any]:
    """Give what `subprocess` and `asyncio` alike need besides the command itself."""
    return {
        "cwd": spec.directory,
        "env": {**environ, **spec.environ},
        "stdin": subprocess.DEVNULL,
        # A Ctrl-C in the terminal is for the supervisor alone, which ends the rest in order.
        "start_new_session": True,
        **build_user_arguments(spec.owner),
    }


def build_server_environ(spec: ProcessSpec, *, path: str) -> dict[str, str]:
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


def start_process(
    spec: ProcessSpec, *, environ: Mapping[str, str], log: Path, dies_with_parent: bool = False
) -> subprocess.Popen[bytes]:
    """Start one process that writes to `log`."""
    handle = open_log(log)
    prepare_child = _make_parent_guard(os.getpid()) if dies_with_parent else None
    try:
        return subprocess.Popen(  # noqa: S603 - argv comes from our own specs
            spec.argv,
            stdout=handle,
            stderr=handle,
            preexec_fn=prepare_child,  # noqa: PLW1509 - only tests ask for it, from one thread
            **build_process_arguments(spec, environ=environ),
        )
    except OSError as error:
        raise build_not_started_error(spec, error) from error
    finally:
        os.close(handle)


def build_not_started_error(spec: ProcessSpec, error: OSError) -> StackError:
    """Say why a program did not even start."""
    return StackError(
        f"{spec.name} could not be started: {error.strerror or error}: {spec.argv[0]}",
        way_out="Check that the program exists and may be executed.",
    )


def _make_parent_guard(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def die_with_parent() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return die_with_parent
