"""Payloads as files: written beside their place, made durable, then moved there in one step."""

import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from noetl_contracts import codec
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef
from noetl_storage.errors import StorageUnavailable
from noetl_storage.payloads import checking, keys
from noetl_storage.payloads.executor import Threads

R = TypeVar("R")

_CHUNK_BYTES = 1024 * 1024
_STAGING = ".staging"


class FilesystemPayloads:
    """One directory tree; a file has its final name only when all of it is on disk."""

    def __init__(self, root: Path, *, threads: Threads) -> None:
        self._root = root
        self._threads = threads

    async def put(
        self,
        data: bytes | AsyncIterator[bytes],
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        media_type: str,
        row_count: int | None = None,
        schema_digest: str | None = None,
    ) -> PayloadRef:
        """Store content; storing it twice, also at the same time, is storing it once."""
        place = partial(keys.content_key, tenant_id, organization_id)
        if isinstance(data, bytes):
            sha256, payload_bytes = codec.digest(data), len(data)
            await self._run(self._store, place(sha256), data)
        else:
            sha256, payload_bytes = await self._store_stream(data, place)
        return keys.build_ref(
            tenant_id=tenant_id,
            organization_id=organization_id,
            sha256=sha256,
            payload_bytes=payload_bytes,
            media_type=media_type,
            row_count=row_count,
            schema_digest=schema_digest,
        )

    async def read(self, ref: PayloadRef) -> bytes:
        """Return content whose digest was checked."""
        data = await self._run(self._find, keys.key_of(ref))
        if data is None:
            raise checking.missing(ref)
        return checking.checked(data, ref)

    async def stream(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        """Yield content in pieces; the digest is checked before the last one is yielded."""
        try:
            file = await self._run(_open, self._root / keys.key_of(ref))
        except FileNotFoundError:
            raise checking.missing(ref) from None
        with file:
            chunks = self._threads.read_all(partial(file.read, _CHUNK_BYTES))
            async for chunk in checking.checked_stream(chunks, ref):
                yield chunk

    async def exists(self, ref: PayloadRef) -> bool:
        """Tell whether the content is stored."""
        return await self._run((self._root / keys.key_of(ref)).is_file)

    async def delete(self, ref: PayloadRef) -> None:
        """Remove content; removing what is not there is no error."""
        await self._run(partial((self._root / keys.key_of(ref)).unlink, missing_ok=True))

    async def put_named(
        self, name: str, data: bytes, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Write an object unless the name is taken; return the bytes that were there before."""
        key = keys.named_key(name, tenant_id, organization_id)
        return await self._run(self._store_once, key, data)

    async def find_named(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Return an object by name, or None."""
        return await self._run(self._find, keys.named_key(name, tenant_id, organization_id))

    async def list_names(
        self, prefix: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> list[str]:
        """Return the names under a prefix, in order."""
        keys.check_prefix(prefix)
        place = self._root / keys.named_prefix(tenant_id, organization_id)
        return await self._run(_list_names, place, prefix)

    async def _run(self, call: Callable[..., R], *args: object) -> R:
        """Run a call in a thread; a full, failing or read-only disk is `StorageUnavailable`."""
        try:
            return await self._threads.run(call, *args)
        except FileNotFoundError:
            raise
        except OSError as failure:
            raise StorageUnavailable(f"{self._root}: {failure.strerror or failure}") from failure

    async def _store_stream(
        self, chunks: AsyncIterator[bytes], place: Callable[[str], str]
    ) -> tuple[str, int]:
        digest, payload_bytes = codec.digester(), 0
        file = await self._run(self._stage)
        try:
            async for chunk in chunks:
                digest.update(chunk)
                payload_bytes += len(chunk)
                await self._run(file.write, chunk)
            await self._run(self._move, file, place(digest.hexdigest()))
        finally:
            await self._run(_discard, file)
        return digest.hexdigest(), payload_bytes

    def _store(self, key: str, data: bytes) -> None:
        target = self._root / key
        with suppress(FileNotFoundError):
            if target.stat().st_size == len(data):
                # Another writer may have moved it there a moment ago.
                _sync_folder(target.parent)
                return
        with self._stage() as file:
            try:
                file.write(data)
                self._move(file, key)
            finally:
                Path(file.name).unlink(missing_ok=True)

    def _store_once(self, key: str, data: bytes) -> bytes | None:
        target = self._root / key
        with self._stage() as file:
            try:
                file.write(data)
                _make_durable(file)
                _make_folder(target.parent)
                os.link(file.name, target)
            except FileExistsError:
                return target.read_bytes()
            finally:
                Path(file.name).unlink(missing_ok=True)
        _sync_folder(target.parent)
        return None

    def _find(self, key: str) -> bytes | None:
        try:
            return (self._root / key).read_bytes()
        except FileNotFoundError:
            return None

    def _stage(self) -> BinaryIO:
        """Open a file that nobody looks at yet, on the same file system as its place to be."""
        staging = self._root / _STAGING
        staging.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=staging)
        os.close(descriptor)
        return Path(name).open("wb")

    def _move(self, file: BinaryIO, key: str) -> None:
        target = self._root / key
        _make_durable(file)
        _make_folder(target.parent)
        Path(file.name).replace(target)
        _sync_folder(target.parent)


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _discard(file: BinaryIO) -> None:
    file.close()
    Path(file.name).unlink(missing_ok=True)


def _make_durable(file: BinaryIO) -> None:
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


def _list_names(place: Path, prefix: str) -> list[str]:
    start = place / prefix if prefix.endswith("/") else (place / prefix).parent
    if not prefix:
        start = place
    names = (path.relative_to(place).as_posix() for path in start.rglob("*") if path.is_file())
    return sorted(name for name in names if name.startswith(prefix))
