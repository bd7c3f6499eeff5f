"""Which versions of the server programs are installed."""

import platform
import re
import subprocess

from noetl_cli.failures import StackError
from noetl_cli.stack import binaries

TIMEOUT_S = 20
NUMBER = re.compile(r"\d+(?:\.\d+)+")


def of_postgres() -> str:
    """Ask PostgreSQL."""
    return _ask([str(binaries.postgres_tree() / "bin" / "postgres"), "--version"])


def of_nats() -> str:
    """Ask the NATS server."""
    return _ask([str(binaries.nats_server()), "--version"])


def of_weed() -> str:
    """Ask SeaweedFS, which names its size limit before its version."""
    return _ask([str(binaries.weed()), "version"])


def of_python() -> str:
    """Name the interpreter that runs the services."""
    return platform.python_version()


def installed() -> dict[str, str]:
    """Name the version of everything that the stack runs on."""
    return {
        "python": of_python(),
        "postgres": of_postgres(),
        "nats": of_nats(),
        "seaweedfs": of_weed(),
    }


def numbers(version: str) -> tuple[int, ...]:
    """Make a version comparable."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _ask(argv: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - our own programs
            argv, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(
            f"{argv[0]} does not start: {error}.",
            way_out="Reinstall the Python package that brings it.",
        ) from error
    found = NUMBER.search(done.stdout)
    if found is None:
        raise StackError(
            f"{argv[0]} does not say its version: {done.stdout.strip() or done.stderr.strip()}",
            way_out="Reinstall the Python package that brings it.",
        )
    return found.group()
