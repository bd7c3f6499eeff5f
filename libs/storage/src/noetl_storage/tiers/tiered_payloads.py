"""One reader in front of a payload store: near tiers first, the store when none of them is sure."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from noetl_contracts import codec
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef
from noetl_storage.ports.ledger_ports import Payloads
from noetl_storage.ports.payload_ports import Tier, TierName, TierWatch
from noetl_storage.process.lazy_import import LazyModule
from noetl_storage.process.scratch import hold_scratch_folder
from noetl_storage.tiers.disk import DiskTier
from noetl_storage.tiers.shared import SharedTier, read_mapped_table

if TYPE_CHECKING:
    from noetl_storage.arrow import encoding
else:
    encoding = LazyModule("noetl_storage.arrow.encoding")


class TieredPayloads:
    """A payload store whose content is also kept nearer; writers write the store first.

    It is itself a payload store. A tier never decides anything: what it does not have, or has and
    cannot vouch for, is read from the store and checked there.
    """

    def __init__(
        self,
        store: Payloads,
        *,
        watch: TierWatch,
        near: Sequence[Tier] = (),
        shared: SharedTier | None = None,
        disk: DiskTier | None = None,
    ) -> None:
        self._store = store
        self._watch = watch
        self._shared = shared
        self._disk = disk
        node_tiers: list[Tier] = [tier for tier in (shared, disk) if tier is not None]
        self._tiers: list[Tier] = [*near, *node_tiers]

    async def put_payload(
        self,
        data: bytes | AsyncIterator[bytes],
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        media_type: str,
        row_count: int | None = None,
        schema_digest: str | None = None,
    ) -> PayloadRef:
        """Store content; what was in memory anyway is then kept near. It is durable first."""
        ref = await self._store.put_payload(
            data,
            tenant_id=tenant_id,
            organization_id=organization_id,
            media_type=media_type,
            row_count=row_count,
            schema_digest=schema_digest,
        )
        if isinstance(data, bytes):
            await self._keep_in_tiers(ref, data, self._tiers)
        return ref

    async def read_payload(self, ref: PayloadRef) -> bytes:
        """Return content whose digest was checked; raises `PayloadMissing`, `PayloadCorrupt`."""
        tiers: list[Tier] = []
        started_s = perf_counter()
        for tier in self._tiers:
            data = await tier.find_copy(ref)
            self._watch.note_read(tier.name, is_hit=data is not None, count_bytes=len(data or b""))
            if data is not None:
                source = tier.name
                break
            tiers.append(tier)
        else:
            data, source = await self._store.read_payload(ref), TierName.STORE
            self._watch.note_read(TierName.STORE, is_hit=True, count_bytes=len(data))
        self._watch.note_resolution(source, duration_s=perf_counter() - started_s)
        await self._keep_in_tiers(ref, data, tiers)
        return data

    async def stream_payload(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        """Yield content of the store in pieces; no tier keeps streamed content."""
        count_bytes = 0
        async for chunk in self._store.stream_payload(ref):
            count_bytes += len(chunk)
            yield chunk
        self._watch.note_read(TierName.STORE, is_hit=True, count_bytes=count_bytes)

    async def map_table(self, ref: PayloadRef, *, is_verified: bool = False) -> Any:
        """Map an Arrow stream of this node as a table, copying nothing; None when it is not here.

        With `is_verified` every byte is read once for its digest.
        """
        if self._shared is None:
            return None
        buffer = self._shared.map_bytes(ref)
        if is_verified and buffer is not None:
            # Of the very bytes that are mapped: the name may lead to others by now.
            is_sound = await asyncio.to_thread(codec.digest_hex, buffer) == ref.sha256
            buffer = buffer if is_sound else None
        table = None if buffer is None else read_mapped_table(buffer)
        if table is not None and ref.schema_digest not in {
            None,
            encoding.digest_schema(table.schema),
        }:
            table = None
        count_bytes = 0 if table is None else buffer.size
        self._watch.note_read(TierName.SHARED, is_hit=table is not None, count_bytes=count_bytes)
        return table

    @asynccontextmanager
    async def lend_file(self, ref: PayloadRef) -> AsyncIterator[Path]:
        """Hold a file with the checked content, so that it is read without being in memory.

        It lies on the disk tier, or in a temporary directory where there is none.
        """
        async with AsyncExitStack() as stack:
            path = await self._lend_from_disk(ref, stack)
            if path is None:
                path = stack.enter_context(hold_scratch_folder("lent")) / "payload"
                await _write_stream(path, self.stream_payload(ref))
            yield path

    async def has_payload(self, ref: PayloadRef) -> bool:
        """Tell whether the store has the content."""
        return await self._store.has_payload(ref)

    async def delete_payload(self, ref: PayloadRef) -> None:
        """Remove content from the store, and the copies that this process can reach."""
        await self._store.delete_payload(ref)
        for tier in self._tiers:
            await tier.forget_copy(ref)

    async def put_named(
        self, name: str, data: bytes, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Write an object unless the name is taken; return the bytes that were there before."""
        return await self._store.put_named(
            name, data, tenant_id=tenant_id, organization_id=organization_id
        )

    async def find_named(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Return an object by name, or None: always from the store, which alone knows."""
        return await self._store.find_named(
            name, tenant_id=tenant_id, organization_id=organization_id
        )

    async def list_names(
        self,
        prefix: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        after: str = "",
        names_max: int | None = None,
    ) -> list[str]:
        """Return the names under a prefix and behind a name, in order, at most so many."""
        return await self._store.list_names(
            prefix,
            tenant_id=tenant_id,
            organization_id=organization_id,
            after=after,
            names_max=names_max,
        )

    async def _keep_in_tiers(self, ref: PayloadRef, data: bytes, tiers: Sequence[Tier]) -> None:
        for tier in tiers:
            if tier is self._disk and _is_sealed(ref):
                continue
            is_kept = await tier.keep_copy(ref, data)
            self._watch.note_copy(tier.name, is_kept=is_kept, used_bytes=tier.used_bytes())

    async def _lend_from_disk(self, ref: PayloadRef, stack: AsyncExitStack) -> Path | None:
        if self._disk is None or _is_sealed(ref):
            return None
        path = await self._disk.check_copy(ref)
        self._watch.note_read(TierName.DISK, is_hit=path is not None, count_bytes=0)
        if path is None:
            path = await self._disk.fill_from_stream(ref, self.stream_payload(ref))
            self._watch.note_copy(
                TierName.DISK, is_kept=path is not None, used_bytes=self._disk.used_bytes()
            )
        try:
            return None if path is None else stack.enter_context(self._disk.lend_copy(path))
        except OSError:
            # Evicted in between, or no room for a name: the store has the content.
            return None


def _is_sealed(ref: PayloadRef) -> bool:
    """Tell whether the store seals this: then no copy stays on a disk in the clear."""
    return ref.key_id is not None


async def _write_stream(target: Path, chunks: AsyncIterator[bytes]) -> None:
    with target.open("wb") as file:
        async for chunk in chunks:
            await asyncio.to_thread(file.write, chunk)
