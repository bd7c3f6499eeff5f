"""Folders of one process: they go when it ends, by its own hand or by that of the next to begin.

A process holds a lock on each of its folders, which the system lets go however the process ends.
What nobody holds is left from one that was killed.
"""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from noetl_storage.ports.errors import StorageMisconfigured
from noetl_storage.process import removal

PREFIX = "noetl-scratch-"
_TRIES_MAX = 100
_REMOVAL_S = 60.0


@contextmanager
def hold_scratch_folder(kind: str, *, root: Path | None = None) -> Iterator[Path]:
    """Hold a new private folder; `kind` says in its name what it is for.

    It lies in `root`, by default that of temporary files. Raises `OSError` where none can be made,
    `StorageMisconfigured` where none can be locked.
    """
    folder, lock = _create_locked(root or Path(tempfile.gettempdir()), kind)
    try:
        yield folder
    finally:
        removal.remove_folder(folder, within_s=_REMOVAL_S)
        os.close(lock)


def sweep_scratch_folders(root: Path | None = None) -> int:
    """Remove what killed processes of this user have left; return how many folders that were."""
    scratch_folders = 0
    with os.scandir(root or tempfile.gettempdir()) as entries:
        paths = [Path(entry.path) for entry in entries if entry.name.startswith(PREFIX)]
    for folder in paths:
        lock = _lock_folder(folder)
        if lock is None:
            continue
        scratch_folders += removal.remove_folder(folder, within_s=_REMOVAL_S)
        os.close(lock)
    return scratch_folders


def is_folder_held(folder: Path) -> bool:
    """Tell whether the process lives that holds a folder, if it is one of this user.

    A worker removes containers whose own worker holds its folder no longer.
    """
    lock = _lock_folder(folder)
    if lock is None:
        return folder.exists()
    os.close(lock)
    return False


def _create_locked(root: Path, kind: str) -> tuple[Path, int]:
    """Make a folder and hold it; who sweeps may come between the two, once in a while."""
    for _ in range(_TRIES_MAX):
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-", dir=root))
        lock = _lock_folder(folder)
        if lock is not None:
            return folder, lock
    raise StorageMisconfigured(f"{root}: folders in there cannot be locked: set another TMPDIR")


def _lock_folder(folder: Path) -> int | None:
    """Take the lock of a folder of this user; None when another process has it, or it is gone."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(descriptor)
            # The former holder may have removed the folder, and another may have its name by now.
            is_there = os.path.samestat(status, folder.lstat())
            if is_there and status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode):
                return descriptor
        os.close(descriptor)
    return None
