"""Folders of evidence on disk: written once, read whole, nothing followed out of them."""

from collections.abc import Mapping
from pathlib import Path

from noetl_cli.failures import CliError, ExitCode

FILE_BYTES_MAX = 4 * 1024 * 1024 * 1024
FILES_MAX = 1000


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a new or empty folder; raises a `CliError` for any other."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise CliError(
                f"{folder} is not empty.",
                way_out="Name a new folder with --output: evidence is never written over.",
                exit_code=ExitCode.USAGE,
            )
        for name, data in files.items():
            (folder / name).write_bytes(data)
    except OSError as failure:
        raise CliError(
            f"The evidence cannot be written to {folder}: {failure.strerror}.",
            way_out="Name another folder with --output.",
        ) from failure


def read(folder: Path) -> dict[str, bytes]:
    """Read every file of a folder; links and folders in it stand as what they are: no files."""
    if not folder.is_dir():
        raise CliError(
            f"{folder} is no folder.",
            way_out="Name the folder that `noetl replay verify` has written.",
            exit_code=ExitCode.USAGE,
        )
    found: dict[str, bytes] = {}
    try:
        for place, path in enumerate(sorted(folder.iterdir())):
            if place >= FILES_MAX:
                raise CliError(f"{folder} holds more than {FILES_MAX} files: it is no evidence.")
            if path.is_symlink() or not path.is_file():
                found[f"{path.name}/"] = b""
                continue
            _check_size(path)
            found[path.name] = path.read_bytes()
    except OSError as failure:
        raise CliError(f"{folder} cannot be read: {failure.strerror}.") from failure
    return found


def _check_size(path: Path) -> None:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise CliError(f"{path} is larger than {FILE_BYTES_MAX} bytes: it is no evidence.")
