"""Units of the archive in a payload store: parts first, the manifest last, nothing ever replaced.

A unit that is written again after a crash gets the same bytes. A part that exists already is
accepted if it holds the same events, and is an error otherwise.
"""

import asyncio
from collections.abc import AsyncIterable, Iterator

from noetl_contracts import codec
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import archive_format, stored_event
from noetl_contracts.ledger.archive_format import (
    ArchivedHistory,
    ArchiveManifest,
    ArchivePart,
    ManifestUnit,
)
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_storage.archive.lazy_parquet import parquet
from noetl_storage.ports.errors import PayloadCorrupt, PayloadMissing
from noetl_storage.ports.ledger_ports import Payloads
from noetl_storage.process import digests

# Writers and readers hold a whole part in memory.
PART_EVENTS_MAX = 20_000


class _UnitWriter:
    """Gathers a unit's parts and what its manifest will say."""

    def __init__(self, store: Payloads, unit: ManifestUnit, *, part_events_max: int) -> None:
        self._store = store
        self._unit = unit
        self._part_events_max = part_events_max
        self._pending_events: list[StoredEvent] = []
        self._stored_parts: dict[ExecutionId, ArchivedHistory] = {}
        self._parts: list[ArchivePart] = []
        self._mentions: set[str] = set()

    async def add_event(self, stored_event: StoredEvent, previous: str) -> None:
        self._mentions.update(
            digests.list_hex_runs(
                codec.encode_json([stored_event.event, stored_event.payload_ref, stored_event.meta])
            )
        )
        self._pending_events.append(stored_event)
        self._note_history(stored_event, previous)
        if len(self._pending_events) >= self._part_events_max:
            await self._write_part()

    def _note_history(self, stored_event: StoredEvent, previous: str) -> None:
        execution, number = ExecutionId(stored_event.execution_id), len(self._parts)
        before = self._stored_parts.get(execution)
        parts = [] if before is None else before.parts
        self._stored_parts[execution] = ArchivedHistory(
            execution_id=execution,
            first_version=stored_event.stream_version if before is None else before.first_version,
            last_version=stored_event.stream_version,
            previous=previous if before is None else before.previous,
            checksum=stored_event.envelope_checksum,
            began_at=stored_event.event_time if before is None else before.began_at,
            ended_at=stored_event.event_time,
            parts=parts if number in parts else [*parts, number],
        )

    async def _write_part(self) -> None:
        number = len(self._parts)
        name = archive_format.build_part_name(self._unit, number)
        data = await self._put_or_compare(
            name, await asyncio.to_thread(parquet.encode, self._pending_events)
        )
        self._parts.append(_build_part(number, name, data, events=len(self._pending_events)))
        self._pending_events = []

    async def _put_or_compare(self, name: str, data: bytes) -> bytes:
        """Write an object, or return the one that an earlier attempt has written."""
        before = await self._put_named(name, data)
        if before is None or before == data:
            return data
        # Another release packs the same events in other bytes.
        if list(parquet.decode(before)) == list(parquet.decode(data)):
            return before
        raise PayloadCorrupt(f"{name} holds other events than are archived there")

    async def _put_named(self, name: str, data: bytes) -> bytes | None:
        unit = self._unit
        return await self._store.put_named(
            name, data, tenant_id=unit.tenant_id, organization_id=unit.organization_id
        )

    async def write_manifest(self) -> ArchiveManifest:
        if self._pending_events:
            await self._write_part()
        unit = self._unit
        name = archive_format.build_mentions_name(unit.manifest_id)
        lines = "\n".join(sorted(self._mentions)).encode()
        await self._put_named(name, lines)
        manifest = ArchiveManifest(
            unit=unit,
            events=sum(part.events for part in self._parts),
            histories=list(self._stored_parts.values()),
            parts=self._parts,
            mentions=_build_part(0, name, lines, events=len(self._mentions)),
        )
        data = codec.encode_json(manifest)
        name = archive_format.build_manifest_name(unit.manifest_id)
        return archive_format.decode_manifest(await self._put_named(name, data) or data)


async def write_unit(
    store: Payloads,
    unit: ManifestUnit,
    events: AsyncIterable[StoredEvent],
    *,
    previous: dict[ExecutionId, str] | None = None,
    part_events_max: int = PART_EVENTS_MAX,
) -> ArchiveManifest:
    """Write events by execution and version, and then their manifest.

    `previous` gives the checksum that a history's first event follows, where it is not the first
    of all. Raises what the store raises, and `PayloadCorrupt` where other events lie already.
    """
    writer = _UnitWriter(store, unit, part_events_max=part_events_max)
    place = (0, 0)
    async for event in events:
        following = (int(event.execution_id), event.stream_version)
        assert following > place, "events come by execution and version"
        place = following
        execution = ExecutionId(event.execution_id)
        await writer.add_event(event, (previous or {}).get(execution, codec.CHECKSUM_NONE))
    return await writer.write_manifest()


async def write_dropped_manifest(
    store: Payloads, unit: ManifestUnit, histories: list[ArchivedHistory]
) -> ArchiveManifest:
    """Write the manifest of histories that are dropped: where they ended, and nothing else."""
    manifest = ArchiveManifest(unit=unit, events=0, histories=histories, parts=[], is_dropped=True)
    before = await store.put_named(
        archive_format.build_manifest_name(unit.manifest_id),
        codec.encode_json(manifest),
        tenant_id=unit.tenant_id,
        organization_id=unit.organization_id,
    )
    return manifest if before is None else archive_format.decode_manifest(before)


async def find_manifest(store: Payloads, unit: ManifestUnit) -> ArchiveManifest | None:
    """Return the manifest of a unit, or None when it was not finished."""
    data = await store.find_named(
        archive_format.build_manifest_name(unit.manifest_id),
        tenant_id=unit.tenant_id,
        organization_id=unit.organization_id,
    )
    return None if data is None else archive_format.decode_manifest(data)


async def read_part(store: Payloads, unit: ManifestUnit, part: ArchivePart) -> bytes:
    """Return the bytes of a part whose digest was checked."""
    data = await store.find_named(
        part.name, tenant_id=unit.tenant_id, organization_id=unit.organization_id
    )
    if data is None:
        raise PayloadMissing(
            f"{part.name} is not in the payload store; manifest {unit.manifest_id} names it"
        )
    if codec.digest_hex(data) != part.sha256:
        raise PayloadCorrupt(f"{part.name} is not what was archived: its digest is another")
    return data


def _build_part(number: int, name: str, data: bytes, *, events: int) -> ArchivePart:
    return ArchivePart(
        number=number, name=name, sha256=codec.digest_hex(data), part_bytes=len(data), events=events
    )


class _HistoryFollower:
    """Follows the histories of a manifest, event by event."""

    def __init__(self, manifest: ArchiveManifest) -> None:
        self._expected = iter(manifest.histories)
        self._current: ArchivedHistory | None = None
        self._version = 0
        self._checksum = codec.CHECKSUM_NONE

    def follow_event(self, event: StoredEvent, part: ArchivePart) -> None:
        """Take the event that follows; raises `PayloadCorrupt` when it does not."""
        current = self._current
        if current is None or event.execution_id != current.execution_id:
            current = self._begin_history(event, part)
        is_next = event.stream_version == self._version + 1
        if not is_next or not stored_event.is_stored_event_sealed(event, self._checksum):
            raise PayloadCorrupt(
                f"{part.name}: version {event.stream_version} of execution "
                f"{event.execution_id} is not what was sealed behind version {self._version}"
            )
        self._version, self._checksum = event.stream_version, event.envelope_checksum

    def _begin_history(self, stored_event: StoredEvent, part: ArchivePart) -> ArchivedHistory:
        self._check_history_end()
        following = next(self._expected, None)
        if following is None or stored_event.execution_id != following.execution_id:
            raise PayloadCorrupt(
                f"{part.name} holds execution {stored_event.execution_id} where the manifest names "
                f"{'none' if following is None else following.execution_id}"
            )
        self._current = following
        self._version, self._checksum = following.first_version - 1, following.previous
        return following

    def finish_part_check(self) -> None:
        """Have seen everything; raises `PayloadCorrupt` when something did not come."""
        self._check_history_end()
        missing = next(self._expected, None)
        if missing is not None:
            raise PayloadCorrupt(f"no part holds execution {missing.execution_id}")

    def _check_history_end(self) -> None:
        history = self._current
        if history is None or (self._version, self._checksum) == (
            history.last_version,
            history.checksum,
        ):
            return
        raise PayloadCorrupt(
            f"execution {history.execution_id} ends at version {self._version} of the archive; its "
            f"manifest says {history.last_version}"
        )


async def verify_unit(store: Payloads, manifest: ArchiveManifest) -> int:
    """Read everything back and return how many events it is.

    Every version of every history must be there once, each event as it was sealed behind the one
    before, the last one as the manifest says. Raises `PayloadMissing` or `PayloadCorrupt`.
    """
    follower = _HistoryFollower(manifest)
    events = 0
    for part in manifest.parts:
        for item in _decode_part(part, await read_part(store, manifest.unit, part)):
            follower.follow_event(item, part)
            events += 1
    follower.finish_part_check()
    if manifest.mentions is not None:
        await read_part(store, manifest.unit, manifest.mentions)
    return events


def _decode_part(part: ArchivePart, data: bytes) -> Iterator[StoredEvent]:
    try:
        yield from parquet.decode(data)
    except MalformedMessage as failure:
        raise PayloadCorrupt(f"{part.name}: {failure}") from failure
