"""Units of the archive in a payload store: parts first, the manifest last, nothing ever replaced.

Whoever writes a unit anew after a crash writes the same: what was written before is believed when
it holds the same events, and else refused.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator

from noetl_contracts import archives, codec
from noetl_contracts.archives import Kept, Manifest, Part, Unit
from noetl_contracts.ids import ExecutionId
from noetl_contracts.stored import StoredEvent
from noetl_storage import digests
from noetl_storage.archive.packing import parquet
from noetl_storage.errors import PayloadCorrupt, PayloadMissing
from noetl_storage.ports import Payloads

# A part is held in memory, by whoever writes it and whoever reads it.
PART_EVENTS_MAX = 20_000


class _Writer:
    """Gathers a unit's parts and what its manifest will say."""

    def __init__(self, store: Payloads, unit: Unit, *, part_events_max: int) -> None:
        self._store = store
        self._unit = unit
        self._part_events_max = part_events_max
        self._waiting: list[StoredEvent] = []
        self._kept: dict[ExecutionId, Kept] = {}
        self._parts: list[Part] = []
        self._mentions: set[str] = set()

    async def take(self, one: StoredEvent, previous: str) -> None:
        self._mentions.update(digests.runs(codec.encode([one.event, one.payload_ref, one.meta])))
        self._waiting.append(one)
        self._note(one, previous)
        if len(self._waiting) >= self._part_events_max:
            await self._flush()

    def _note(self, one: StoredEvent, previous: str) -> None:
        execution, number = ExecutionId(one.execution_id), len(self._parts)
        before = self._kept.get(execution)
        parts = [] if before is None else before.parts
        self._kept[execution] = Kept(
            execution_id=execution,
            first_version=one.stream_version if before is None else before.first_version,
            last_version=one.stream_version,
            previous=previous if before is None else before.previous,
            checksum=one.envelope_checksum,
            began_at=one.event_time if before is None else before.began_at,
            ended_at=one.event_time,
            parts=parts if number in parts else [*parts, number],
        )

    async def _flush(self) -> None:
        number = len(self._parts)
        name = archives.part_name(self._unit, number)
        data = await self._put(name, await asyncio.to_thread(parquet.encode, self._waiting))
        self._parts.append(_part(number, name, data, events=len(self._waiting)))
        self._waiting = []

    async def _put(self, name: str, data: bytes) -> bytes:
        """Write an object, or return the one that an earlier attempt has written."""
        before = await self._put_once(name, data)
        if before is None or before == data:
            return data
        # Another release packs the same events in other bytes.
        if list(parquet.decode(before)) == list(parquet.decode(data)):
            return before
        raise PayloadCorrupt(f"{name} holds other events than are archived there")

    async def _put_once(self, name: str, data: bytes) -> bytes | None:
        unit = self._unit
        return await self._store.put_named(
            name, data, tenant_id=unit.tenant_id, organization_id=unit.organization_id
        )

    async def finish(self) -> Manifest:
        if self._waiting:
            await self._flush()
        unit = self._unit
        name = archives.mentions_name(unit.manifest_id)
        lines = "\n".join(sorted(self._mentions)).encode()
        await self._put_once(name, lines)
        manifest = Manifest(
            unit=unit,
            events=sum(part.events for part in self._parts),
            histories=list(self._kept.values()),
            parts=self._parts,
            mentions=_part(0, name, lines, events=len(self._mentions)),
        )
        data = codec.encode(manifest)
        name = archives.manifest_name(unit.manifest_id)
        return archives.decode_manifest(await self._put_once(name, data) or data)


async def write(
    store: Payloads,
    unit: Unit,
    events: AsyncIterable[StoredEvent],
    *,
    previous: dict[ExecutionId, str] | None = None,
    part_events_max: int = PART_EVENTS_MAX,
) -> Manifest:
    """Write events by execution and version, and then their manifest.

    `previous` gives the checksum that a history's first event follows, where it is not the first
    of all. Raises what the store raises, and `PayloadCorrupt` where other events lie already.
    """
    writer = _Writer(store, unit, part_events_max=part_events_max)
    place = (0, 0)
    async for one in events:
        following = (int(one.execution_id), one.stream_version)
        assert following > place, "events come by execution and version"
        place = following
        execution = ExecutionId(one.execution_id)
        await writer.take(one, (previous or {}).get(execution, codec.CHECKSUM_NONE))
    return await writer.finish()


async def record(store: Payloads, unit: Unit, histories: list[Kept]) -> Manifest:
    """Write the manifest of histories that are dropped: where they ended, and nothing else."""
    manifest = Manifest(unit=unit, events=0, histories=histories, parts=[], is_dropped=True)
    before = await store.put_named(
        archives.manifest_name(unit.manifest_id),
        codec.encode(manifest),
        tenant_id=unit.tenant_id,
        organization_id=unit.organization_id,
    )
    return manifest if before is None else archives.decode_manifest(before)


async def find_manifest(store: Payloads, unit: Unit) -> Manifest | None:
    """Return the manifest of a unit, or None when it was not finished."""
    data = await store.find_named(
        archives.manifest_name(unit.manifest_id),
        tenant_id=unit.tenant_id,
        organization_id=unit.organization_id,
    )
    return None if data is None else archives.decode_manifest(data)


async def read(
    store: Payloads, manifest: Manifest, execution_id: ExecutionId, *, after_version: int = 0
) -> AsyncIterator[StoredEvent]:
    """Yield an execution's events after a version; none when the manifest does not name it.

    Raises `PayloadMissing` or `PayloadCorrupt` for a part that is not there, or not what it was.
    """
    kept = manifest.find(execution_id)
    for part in _parts(manifest, kept):
        data = await read_part(store, manifest.unit, part)
        for one in parquet.decode(data, execution_id=execution_id, after_version=after_version):
            yield one


async def read_part(store: Payloads, unit: Unit, part: Part) -> bytes:
    """Return the bytes of a part whose digest was checked."""
    data = await store.find_named(
        part.name, tenant_id=unit.tenant_id, organization_id=unit.organization_id
    )
    if data is None:
        raise PayloadMissing(
            f"{part.name} is not in the payload store; manifest {unit.manifest_id} names it"
        )
    if codec.digest(data) != part.sha256:
        raise PayloadCorrupt(f"{part.name} is not what was archived: its digest is another")
    return data


def _parts(manifest: Manifest, kept: Kept | None) -> list[Part]:
    numbers = set() if kept is None else set(kept.parts)
    return [part for part in manifest.parts if part.number in numbers]


def _part(number: int, name: str, data: bytes, *, events: int) -> Part:
    return Part(
        number=number, name=name, sha256=codec.digest(data), part_bytes=len(data), events=events
    )
