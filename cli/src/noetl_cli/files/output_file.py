"""Files that commands write: a regular file is there as a whole, or not at all."""

import os
from collections.abc import Iterable
from pathlib import Path

from noetl_cli.errors import CliError, ExitCode


def check_output_file(file: Path) -> None:
    """Refuse a folder, and a file in a folder that is none; raises `CliError`."""
    if not file.parent.is_dir() or file.is_dir():
        fault = "is a folder" if file.is_dir() else f"lies in {file.parent}, which is no folder"
        raise CliError(
            f"{str(file)!r} {fault}.",
            way_out="Name a file in a folder that is there.",
            exit_code=ExitCode.USAGE,
        )


def write_output_file(file: Path, parts: Iterable[bytes]) -> int:
    """Write parts one after the other, and return how many; raises `CliError`.

    Pipes and devices are written as the parts come.
    """
    check_output_file(file)
    is_special = file.exists() and not file.is_file()
    partial = file if is_special else file.with_name(f".{file.name}.{os.getpid()}")
    count = 0
    try:
        with partial.open("wb") as target:
            for part in parts:
                target.write(part)
                count += 1
        if not is_special:
            partial.replace(file)
    except OSError as failure:
        raise CliError(
            f"{file} cannot be written: {failure.strerror or failure}.",
            way_out="Choose a file in a folder that is writable.",
        ) from failure
    finally:
        if not is_special:
            partial.unlink(missing_ok=True)
    return count
