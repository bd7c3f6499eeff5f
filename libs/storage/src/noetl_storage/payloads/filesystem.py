"""Payloads as files: written beside their place, made durable, then moved there in one step."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from noetl_storage.payloads.objects import ObjectInfo, ObjectReader
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.payloads.thread_runner import ThreadRunner
from noetl_storage.ports.errors import StorageFull, StorageUnavailable
from noetl_storage.ports.payload_ports import ObjectSeals

_STAGING = ".staging"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class FilesystemObjects:
    """One directory tree; a file has its final name only when all of it is on disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def translate_errors(self, key: str) -> Iterator[None]:
        """Call a full disk `StorageFull`, a failing or read-only one `StorageUnavailable`."""
        try:
            yield
        except FileExistsError:
            raise
        except FileNotFoundError as failure:
            raise KeyError(key) from failure
        except OSError as failure:
            kind = StorageFull if failure.errno in _FULL else StorageUnavailable
            raise kind(f"{self._root}: {failure.strerror or failure}") from failure

    def store_object(self, key: str, data: bytes, media_type: str) -> None:  # noqa: ARG002 - files have no type
        """Write a file, replacing the one before."""
        target = self._root / key
        with suppress(FileNotFoundError):
            if target.stat().st_size == len(data):
                # Another writer may have moved it there a moment ago. The garbage collection must
                # see that it was written again.
                os.utime(target)
                _sync_folder(target.parent)
                return
        staging_file = self.open_staging()
        try:
            staging_file.write(data)
            self.store_staged(key, staging_file, "")
        finally:
            self.discard_staged(staging_file)

    def store_object_once(self, key: str, data: bytes) -> None:
        """Write a file; raises `FileExistsError` when there is one."""
        target = self._root / key
        staging_file = self.open_staging()
        try:
            staging_file.write(data)
            _make_durable(staging_file)
            _make_folder(target.parent)
            os.link(staging_file.name, target)
        finally:
            self.discard_staged(staging_file)
        _sync_folder(target.parent)

    def open_staging(self) -> IO[bytes]:
        """Open a file that nobody looks at yet, on the same file system as its place to be."""
        staging = self._root / _STAGING
        staging.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=staging)
        os.close(descriptor)
        return Path(name).open("wb")

    def store_staged(self, key: str, staging_file: IO[bytes], media_type: str) -> None:  # noqa: ARG002 - files have no type
        """Move a staged file to its place."""
        target = self._root / key
        _make_durable(staging_file)
        _make_folder(target.parent)
        Path(staging_file.name).replace(target)
        _sync_folder(target.parent)

    def discard_staged(self, staging_file: IO[bytes]) -> None:
        """Close a staged file and remove it if it was not moved."""
        # A full disk fails once more when the buffer is flushed; what was written is unwanted.
        with suppress(OSError):
            staging_file.close()
        Path(staging_file.name).unlink(missing_ok=True)

    def read_object(self, key: str) -> bytes:
        """Return the bytes of a file; raises `FileNotFoundError`."""
        return (self._root / key).read_bytes()

    def open_object(self, key: str) -> ObjectReader:
        """Open a file; it can be read to its end although it is removed meanwhile."""
        return (self._root / key).open("rb")

    def find_object(self, key: str) -> ObjectInfo | None:
        """Describe a file, or return None."""
        path = self._root / key
        try:
            return self._describe_file(path) if path.is_file() else None
        except FileNotFoundError:
            return None

    def delete_object(self, key: str) -> None:
        """Remove a file; removing what is not there is no error."""
        (self._root / key).unlink(missing_ok=True)

    def move_object(self, key: str, to: str) -> None:
        """Move a file in one step; raises `FileNotFoundError`."""
        target = self._root / to
        _make_folder(target.parent)
        (self._root / key).replace(target)
        os.utime(target)
        _sync_folder(target.parent)

    def iterate_objects_under(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield every file whose key begins with a prefix and lies behind another, in order."""
        start = self._root / prefix
        folder = start if prefix.endswith("/") else start.parent
        for key in self._iterate_keys(folder, prefix, after):
            if (object_info := self.find_object(key)) is not None:
                yield object_info

    def _iterate_keys(self, folder: Path, prefix: str, after: str) -> Iterator[str]:
        """Walk in the order of keys, past folders that hold nothing of what is wanted."""
        for key in sorted(self._list_folder(folder)):
            if not key.endswith("/"):
                if key.startswith(prefix) and key > after:
                    yield key
            elif (key.startswith(prefix) or prefix.startswith(key)) and (
                key > after or after.startswith(key)
            ):
                yield from self._iterate_keys(self._root / key, prefix, after)

    def _list_folder(self, folder: Path) -> list[str]:
        """List the keys of a folder, those of folders with a slash; none once it is gone."""
        base = "" if folder == self._root else f"{folder.relative_to(self._root).as_posix()}/"
        try:
            with os.scandir(folder) as entries:
                return [
                    f"{base}{entry.name}{'/' if entry.is_dir(follow_symlinks=False) else ''}"
                    for entry in entries
                ]
        except FileNotFoundError:
            return []

    def _describe_file(self, path: Path) -> ObjectInfo:
        about = path.stat()
        return ObjectInfo(
            key=path.relative_to(self._root).as_posix(),
            stored_bytes=about.st_size,
            modified_at=datetime.fromtimestamp(about.st_mtime, UTC),
        )


class FilesystemPayloads(PayloadStore):
    """Payloads in a folder, also of a volume that many processes mount."""

    def __init__(
        self, root: Path, *, threads: ThreadRunner, seals: ObjectSeals | None = None
    ) -> None:
        super().__init__(FilesystemObjects(root), runner=threads, seals=seals)


def _make_durable(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents, each durable in the one above it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
