"""Keep every log below a size: copy it aside, then empty it under the writer's feet."""

import shutil
from pathlib import Path

LOG_BYTES_MAX = 16 * 1024 * 1024
COPIES_MAX = 3


def rotate(folder: Path, *, bytes_max: int = LOG_BYTES_MAX) -> list[str]:
    """Rotate the logs that have grown too long; name them."""
    grown = [log for log in sorted(folder.glob("*.log")) if log.stat().st_size > bytes_max]
    for log in grown:
        for number in range(COPIES_MAX - 1, 0, -1):
            older = log.with_name(f"{log.name}.{number}")
            if older.exists():
                older.replace(log.with_name(f"{log.name}.{number + 1}"))
        _set_aside(log, log.with_name(f"{log.name}.1"))
        # Writers append, so the next line goes to the new beginning. Lines written between
        # the copy and this are lost: the price of not standing between a process and its log.
        with log.open("r+b") as file:
            file.truncate(0)
    return [log.name for log in grown]


def _set_aside(log: Path, copy: Path) -> None:
    """Copy a log, unless the disk is full: then emptying it is what helps."""
    try:
        shutil.copyfile(log, copy)
        copy.chmod(0o600)
    except OSError:
        copy.unlink(missing_ok=True)
