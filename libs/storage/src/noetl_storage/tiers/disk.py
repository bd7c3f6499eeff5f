"""Copies on a local disk, up to a number of bytes; processes of a node may share the directory.

A file is written beside its place and moved there; a crash leaves at worst a file whose digest
does not fit, which is a miss and is removed. Nothing is synchronized: the store has the content.
"""

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

from noetl_contracts import codec
from noetl_contracts.payloads import PayloadRef
from noetl_storage.ports.payload_ports import TierName
from noetl_storage.tiers import segment_directory, segment_format
from noetl_storage.tiers.segment_directory import SegmentDirectoryRefused
from noetl_storage.tiers.segment_format import SegmentOwner

_STORE_DIGITS = 12
_LOW_WATER = 0.9
_CHUNK_BYTES = 1024 * 1024
_LENT_FOLDER = "lent"
_NOBODY = SegmentOwner(pid=0, started=0, namespace=0)


class DiskTier:
    """The files of one store; the least recently used go first."""

    name = TierName.DISK

    def __init__(self, directory: Path, *, store_url: str, bytes_max: int) -> None:
        self._place = directory / codec.digest_hex(store_url.encode())[:_STORE_DIGITS]
        try:
            self._place.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lent_folder = directory / _LENT_FOLDER
            self._lent_folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as failure:
            raise SegmentDirectoryRefused(
                f"{self._place}: {failure.strerror or failure}"
            ) from failure
        self._bytes_max = bytes_max
        self._me = segment_format.find_this_process() or _NOBODY
        self._number = 0
        self._mutex = threading.Lock()
        self._used = 0
        self._clear_lent()
        self.evict_least_used()

    async def find_copy(self, ref: PayloadRef) -> bytes | None:
        """Return content whose digest was checked, or None on any doubt."""
        return await asyncio.to_thread(self._find_checked, ref)

    async def keep_copy(self, ref: PayloadRef, data: bytes) -> bool:
        """Write a copy; False when there is no room or the disk fails."""
        if len(data) > self._bytes_max:
            return False
        return await asyncio.to_thread(self._write_copy, ref, data)

    async def fill_from_stream(self, ref: PayloadRef, chunks: AsyncIterator[bytes]) -> Path | None:
        """Keep content that arrives in pieces; return its file, or None when there is no room.

        The pieces must come from a stream that checks the digest: what it raises is raised, and
        nothing is kept.
        """
        part = self._create_part_path()
        size = 0
        try:
            with part.open("wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self._bytes_max:
                        return None
                    await asyncio.to_thread(file.write, chunk)
            part.replace(self.get_copy_path(ref))
        except OSError:
            return None
        finally:
            part.unlink(missing_ok=True)
        await asyncio.to_thread(self._add_used, size)
        return self.get_copy_path(ref)

    async def check_copy(self, ref: PayloadRef) -> Path | None:
        """Return the file of a copy after reading it once for its digest; None on any doubt."""
        return await asyncio.to_thread(self._check_copy_digest, ref)

    async def forget_copy(self, ref: PayloadRef) -> None:
        """Drop the copy; dropping what is not there is no error."""
        self.get_copy_path(ref).unlink(missing_ok=True)

    def used_bytes(self) -> int:
        """Return how many bytes the directory holds, as this process last counted them."""
        return self._used

    def get_copy_path(self, ref: PayloadRef) -> Path:
        """Return where the copy of a reference lies, or would lie."""
        return self._place / segment_format.build_segment_name(ref)

    @contextmanager
    def lend_copy(self, path: Path) -> Iterator[Path]:
        """Hold another name of a copy, so that evicting it takes nothing away from its reader."""
        folder = tempfile.TemporaryDirectory(dir=self._lent_folder, prefix=f"{self._me}.")
        with folder as name:
            lent_path = Path(name) / "payload"
            lent_path.hardlink_to(path)
            yield lent_path

    def evict_least_used(self) -> None:
        """Count what is there; above the bound, remove the least recently used files."""
        with self._mutex:
            copies: list[tuple[float, int, Path]] = []
            for file in self._place.iterdir():
                try:
                    about = file.stat()
                    if _is_part_abandoned(file):
                        file.unlink()
                    elif not file.name.endswith(segment_directory.PART):
                        copies.append((about.st_mtime, about.st_size, file))
                except FileNotFoundError:
                    continue
            self._used = sum(size for _, size, _ in copies)
            if self._used <= self._bytes_max:
                return
            for _, size, file in sorted(copies):
                if self._used <= self._bytes_max * _LOW_WATER:
                    break
                file.unlink(missing_ok=True)
                self._used -= size

    def _clear_lent(self) -> None:
        """Remove what processes that died had borrowed."""
        for folder in self._lent_folder.iterdir():
            owner = segment_format.parse_owner(folder.name.partition(".")[0])
            if owner is None or segment_format.is_alive(owner) is False:
                shutil.rmtree(folder, ignore_errors=True)

    def _find_checked(self, ref: PayloadRef) -> bytes | None:
        file = self.get_copy_path(ref)
        try:
            data = file.read_bytes()
            if codec.digest_hex(data) != ref.sha256:
                file.unlink(missing_ok=True)
                return None
            os.utime(file)
        except OSError:
            return None
        return data

    def _check_copy_digest(self, ref: PayloadRef) -> Path | None:
        path, digest = self.get_copy_path(ref), codec.start_digest()
        try:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
            if digest.hexdigest() != ref.sha256:
                path.unlink(missing_ok=True)
                return None
            os.utime(path)
        except OSError:
            return None
        return path

    def _write_copy(self, ref: PayloadRef, data: bytes) -> bool:
        file = self.get_copy_path(ref)
        if file.exists():
            return True
        part = self._create_part_path()
        try:
            part.write_bytes(data)
            part.replace(file)
        except OSError:
            part.unlink(missing_ok=True)
            return False
        self._add_used(len(data))
        return True

    def _add_used(self, size: int) -> None:
        with self._mutex:
            self._used += size
            is_over = self._used > self._bytes_max
        if is_over:
            self.evict_least_used()

    def _create_part_path(self) -> Path:
        with self._mutex:
            self._number += 1
            return self._place / segment_directory.build_part_name(self._me, self._number)


def _is_part_abandoned(file: Path) -> bool:
    """Tell whether the writer of a part has ended, so that the part stays unfinished."""
    if not file.name.endswith(segment_directory.PART):
        return False
    owner = segment_directory.parse_part_owner(file.name)
    return owner is None or segment_format.is_alive(owner) is False
