"""The folders below the work directory: files that outlive executions, and locks.

Every organization has its own part, and no path leads out of it.
"""

import asyncio
import fcntl
import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from noetl_contracts import codec
from noetl_storage.process.scratch import hold_scratch_folder
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.unit_identity import UnitScope

_OWNER = re.compile(r"[A-Za-z0-9_-]{1,64}")


class WorkFolder:
    """One directory; it is lasting where an operator has named it, and else ends with the worker.

    Workers that share a lasting one respect each other's locks.
    """

    def __init__(self, root: Path, *, is_lasting: bool = True) -> None:
        self.root = root.resolve()
        self.is_lasting = is_lasting

    def get_files_folder(self, site: UnitScope) -> Path:
        """Return the folder of an organization's own files, made when it is new."""
        return self._get_folder(site, "files")

    def get_lock_path(self, path: Path, site: UnitScope) -> Path:
        """Return the file whose lock says who uses a file."""
        return self._get_folder(site, "locks") / codec.digest_hex(str(path).encode())

    def resolve_path(self, path: str, site: UnitScope) -> Path:
        """Return the real path of an organization's file.

        Raises `ToolFailure` when a link leads out of the organization's part.
        """
        folder = self.get_files_folder(site).resolve()
        try:
            real_path = (folder / path).resolve()
        except (OSError, RuntimeError) as problem:
            raise _build_folder_failure(f"{path!r:.120} cannot be followed: {problem}") from problem
        if not real_path.is_relative_to(folder) or real_path == folder:
            text = f"{path!r:.120} leads out of the folder of the organization's files"
            raise _build_folder_failure(text)
        return real_path

    def _get_folder(self, site: UnitScope, name: str) -> Path:
        for owner in (site.tenant_id, site.organization_id):
            if not _OWNER.fullmatch(owner):
                raise _build_folder_failure(
                    f"{owner!r:.80} cannot name a folder: 1 to 64 of [A-Za-z0-9_-]"
                )
        folder = self.root / "tenant" / site.tenant_id / "org" / site.organization_id / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder


@contextmanager
def open_work_folder(root: str) -> Iterator[WorkFolder]:
    """Use a directory, or one of this process's own that ends with the block."""
    if root:
        Path(root).mkdir(parents=True, exist_ok=True)
        yield WorkFolder(Path(root))
        return
    with hold_scratch_folder("work") as path:
        yield WorkFolder(path, is_lasting=False)


def _build_folder_failure(text: str) -> ToolFailure:
    return ToolFailure(build_error("config", text))


_PAUSE_S = 0.02


class PathLocks:
    """Locks of files in the work directory, which other processes respect as well.

    No two calls wait for each other. A call that needs several files names them together and gets
    their locks in the order of the paths, which is the same for all calls. Only with all locks does
    it wait for more: a place of DuckDB's, which no call holds while it waits for a lock, and then
    connections, of which in each pool one at least is held by nobody who does (`Pool`).
    """

    def __init__(self, folder: WorkFolder) -> None:
        self._folder = folder
        self._lock_by_path: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold_paths(self, paths: Iterable[Path], site: UnitScope) -> AsyncIterator[None]:
        """Have files alone while the block runs; they are real paths."""
        async with AsyncExitStack() as stack:
            for path in sorted(set(paths)):
                lock = self._lock_by_path.setdefault(path, asyncio.Lock())
                await stack.enter_async_context(lock)
                await stack.enter_async_context(
                    _hold_file_lock(self._folder.get_lock_path(path, site))
                )
            yield


@asynccontextmanager
async def _hold_file_lock(path: Path) -> AsyncIterator[None]:
    """Hold a file's lock, which other processes of the machine respect.

    A waiting process holds the turn meanwhile: a busy process cannot take the lock again before it.
    """
    async with _hold_flock(path.with_suffix(".turn")) as turn, _hold_flock(path):
        os.close(turn.pop())
        yield


@asynccontextmanager
async def _hold_flock(path: Path) -> AsyncIterator[list[int]]:
    """Lock a file; the lock ends with the descriptor, which the block may take and close."""
    descriptors = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)]
    try:
        while not _try_lock(descriptors[0], path):  # noqa: ASYNC110 - another process holds it
            await asyncio.sleep(_PAUSE_S)
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as problem:
        text = (
            f"the lock {path} cannot be taken: {problem}: put NOETL_WORKER_WORK_DIRECTORY on a "
            "file system that supports locks"
        )
        raise ToolFailure(build_error("config", text)) from problem
    return True
