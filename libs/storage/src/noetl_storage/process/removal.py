"""Removal of folders that user code could write, with any content and any permissions."""

import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

_TRIES_MAX = 3
# Linux alone opens what is closed to its own user, so far that it can be granted again.
_PLACE = getattr(os, "O_PATH", os.O_RDONLY)


def remove_folder(folder: Path, *, within_s: float) -> bool:
    """Remove a folder with all that is in it; tell whether it is gone."""
    until_s = time.monotonic() + within_s
    for _ in range(_TRIES_MAX):
        try:
            if empty_folder(folder, within_s=until_s - time.monotonic()):
                folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            # The process that was killed last may have written once more.
            continue
        return not folder.exists()
    return False


def empty_folder(folder: Path, *, within_s: float) -> bool:
    """Remove what is in a folder; False when that takes too long. Raises `OSError`.

    Folders are brought up to it before they are emptied, so that none lies too deep. No link is
    followed, also when somebody puts one in a folder's place meanwhile.
    """
    deadline_s = time.monotonic() + within_s
    label = secrets.token_hex(8)
    names = (f"{label}-{number}" for number in count())
    with _open_folder(folder) as top:
        while entry_names := os.listdir(top):  # noqa: PTH208 - by descriptor
            for name in entry_names:
                if time.monotonic() > deadline_s:
                    return False
                _remove_entry(name, top, names)
    return True


def _remove_entry(name: str, top: int, names: Iterator[str]) -> None:
    """Remove a file or a folder; folders in it become neighbours of their parent."""
    if not _is_folder(name, top):
        os.unlink(name, dir_fd=top)
        return
    with _open_folder(name, top) as folder:
        for inner in os.listdir(folder):  # noqa: PTH208 - by descriptor
            if not _is_folder(inner, folder):
                os.unlink(inner, dir_fd=folder)
                continue
            # One that its owner may not write to cannot be moved.
            with _open_folder(inner, folder):
                os.rename(inner, next(names), src_dir_fd=folder, dst_dir_fd=top)
    os.rmdir(name, dir_fd=top)


def _is_folder(name: str, within: int) -> bool:
    return stat.S_ISDIR(os.lstat(name, dir_fd=within).st_mode)


@contextmanager
def _open_folder(name: str | Path, within: int | None = None) -> Iterator[int]:
    """Open a folder and grant its owner everything in it."""
    place = os.open(name, _PLACE | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    try:
        with suppress(OSError):
            Path(f"/proc/self/fd/{place}").chmod(stat.S_IRWXU)
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=place)
    finally:
        os.close(place)
    try:
        yield folder
    finally:
        os.close(folder)
