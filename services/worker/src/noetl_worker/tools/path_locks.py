"""Who may use a file: one at a time, of this process and of the others on its machine."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.sites import Site
from noetl_worker.tools.workplace import WorkFolder

_PAUSE_S = 0.02


class PathLocks:
    """Locks of files in the work directory, which other processes respect as well.

    No two calls wait for each other. Whoever needs several files names them together, and gets
    their locks in the order of the paths, which is the same for everybody. Only who has them all
    waits for more: a place of DuckDB's, which nobody holds who waits for a lock, and then
    connections, of which in each pool one at least is held by nobody who does (`Pool`).
    """

    def __init__(self, folder: WorkFolder) -> None:
        self._folder = folder
        self._lock_by_path: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def held(self, paths: Iterable[Path], site: Site) -> AsyncIterator[None]:
        """Have files alone while the block runs; they are real paths."""
        async with AsyncExitStack() as stack:
            for path in sorted(set(paths)):
                lock = self._lock_by_path.setdefault(path, asyncio.Lock())
                await stack.enter_async_context(lock)
                await stack.enter_async_context(_file_lock(self._folder.lock_of(path, site)))
            yield


@asynccontextmanager
async def _file_lock(path: Path) -> AsyncIterator[None]:
    """Hold a file's lock, which other processes of the machine respect.

    Whoever waits holds the turn meanwhile: a busy process cannot take the lock again before it.
    """
    async with _flocked(path.with_suffix(".turn")) as turn, _flocked(path):
        os.close(turn.pop())
        yield


@asynccontextmanager
async def _flocked(path: Path) -> AsyncIterator[list[int]]:
    """Lock a file; the lock ends with the descriptor, which the block may take and close."""
    held = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)]
    try:
        while not _has_locked(held[0], path):  # noqa: ASYNC110 - another process holds it
            await asyncio.sleep(_PAUSE_S)
        yield held
    finally:
        for descriptor in held:
            os.close(descriptor)


def _has_locked(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as problem:
        text = (
            f"the lock {path} cannot be taken: {problem}: put NOETL_WORKER_WORK_DIRECTORY on a "
            "file system that supports locks"
        )
        raise ToolFailure(failure("config", text)) from problem
    return True
