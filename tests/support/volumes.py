"""Disks of a bounded size of their own, which a test fills and frees again."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Room that only becomes memory when it is written; brokers reserve much more than they use.
ROOM_BYTES = 8 * 1024**3
_PAGE_BYTES = 4096
_PATIENCE_S = 60
# Where PostgreSQL's own user can reach it, which it cannot below the folders of a test.
_ROOT = Path("/var/tmp")  # noqa: S108 - the folder made there is a fresh one


class Volume:
    """A file system in memory whose size is what it holds, and as much room as a test gives it."""

    def __init__(self, folder: Path, *, prefix: tuple[str, ...]) -> None:
        self.folder = folder
        self._prefix = prefix

    @property
    def free_bytes(self) -> int:
        """Tell how much room is left."""
        return shutil.disk_usage(self.folder).free

    def fill(self, *, room_bytes: int = 0) -> None:
        """Leave so much room and no more; whoever writes meanwhile may take the rest of it."""
        for _ in range(_PATIENCE_S):
            used = shutil.disk_usage(self.folder).used
            # A size of nothing would be a size without an end.
            pages = max(1, -(-(used + room_bytes) // _PAGE_BYTES))
            if self._resize(pages * _PAGE_BYTES).returncode == 0:
                return
        raise AssertionError(f"{self.folder} grew faster than it could be bounded")

    def free(self) -> None:
        """Give it room again."""
        done = self._resize(ROOM_BYTES)
        assert done.returncode == 0, done.stderr

    @contextmanager
    def full(self) -> Iterator[None]:
        """Leave no room for a while, and give it back whatever happens meanwhile."""
        self.fill()
        try:
            yield
        finally:
            self.free()

    def _resize(self, size_bytes: int) -> subprocess.CompletedProcess[str]:
        return _run(*self._prefix, "mount", "-o", f"remount,size={size_bytes}", str(self.folder))


@contextmanager
def volume(folder: Path | None = None) -> Iterator[Volume]:
    """Mount a disk of its own, at a folder or where every user can reach it."""
    prefix = () if os.geteuid() == 0 else ("sudo", "-n")
    made = folder or Path(tempfile.mkdtemp(prefix="noetl-volume-", dir=_ROOT))
    made.mkdir(parents=True, exist_ok=True)
    options = f"size={ROOM_BYTES},mode=0711,uid={os.geteuid()},gid={os.getegid()}"
    done = _run(*prefix, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(made))
    if done.returncode != 0:
        made.rmdir()
        pytest.skip(f"no disk of a bounded size can be mounted here: {done.stderr.strip()}")
    try:
        yield Volume(made, prefix=prefix)
    finally:
        _run(*prefix, "umount", "--lazy", str(made))
        shutil.rmtree(made, ignore_errors=True)


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - our own words
            argv, check=False, capture_output=True, text=True, timeout=_PATIENCE_S
        )
    except FileNotFoundError as missing:
        return subprocess.CompletedProcess(argv, 127, "", str(missing))
