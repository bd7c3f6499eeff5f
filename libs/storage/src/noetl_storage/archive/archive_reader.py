"""Reads histories from the ledger, and from the archive once they have left the ledger.

A caller sees no difference: the events are the same, with the same versions and checksums.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

from noetl_contracts.events.frame_events import FrameEnd
from noetl_contracts.events.step_events import CallError, ItemEnd
from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.archive_format import ArchiveManifest, ArchivePart, ManifestUnit
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import Append, AppendResult, HistoryHead, LineageLink
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_contracts.lru_cache import LruCache
from noetl_storage.archive import archivist, units
from noetl_storage.archive.lazy_parquet import parquet
from noetl_storage.ledger import histories
from noetl_storage.ports.errors import ArchiveUnreachable, HistoryDropped, PayloadMissing
from noetl_storage.ports.history_ports import LedgerAudit, TimeBucket
from noetl_storage.ports.ledger_ports import LedgerReader, LedgerWriter, Payloads
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.ports.retention_ports import ArchivedSpan, ArchiveIndex, RetentionAction

Event = TypeVar("Event", Envelope, StoredEvent)

_PAGE_EVENTS = 1000
_MANIFESTS_MAX = 64
CACHE_BYTES_DEFAULT = 64 * 1024 * 1024


class ArchiveReader:
    """Reads what has left the ledger; keeps the parts that were read last."""

    def __init__(
        self, index: ArchiveIndex, store: Payloads | None, *, cache_bytes: int = CACHE_BYTES_DEFAULT
    ) -> None:
        self._index = index
        self._store = store
        self._manifests = LruCache[str, ArchiveManifest](entries_max=_MANIFESTS_MAX)
        self._parts: LruCache[str, bytes] = LruCache(weight_max=cache_bytes)

    async def read_archived(
        self, execution_id: ExecutionId, *, after_version: int, events_max: int
    ) -> list[StoredEvent]:
        """Return a page of what has left the ledger; nothing when nothing has.

        Raises `HistoryDropped`, `ArchiveUnreachable`, `PayloadMissing` or `PayloadCorrupt`.
        """
        stored_events: list[StoredEvent] = []
        for archived in await self._index.find_archived(execution_id):
            after = max(after_version, archived.span.first_version - 1)
            if archived.span.last_version > after and len(stored_events) < events_max:
                stored_events += await self._read_page(
                    archived, after=after, room=events_max - len(stored_events)
                )
        return stored_events

    async def _read_page(
        self, archived: ArchivedSpan, *, after: int, room: int
    ) -> list[StoredEvent]:
        unit, execution_id = archived.unit, archived.span.execution_id
        if unit.action is RetentionAction.DROP:
            raise HistoryDropped(
                f"versions {archived.span.first_version} to {archived.span.last_version} of "
                f"execution {execution_id} were removed by the retention policy (manifest "
                f"{unit.manifest_id}, {unit.dropped_at or unit.planned_at:%F})"
            )
        if self._store is None:
            raise ArchiveUnreachable(
                f"execution {execution_id} was archived (manifest {unit.manifest_id}), and the "
                "payload store's address is not set here"
            )
        manifest = await self._load_manifest(self._store, archivist.build_manifest_unit(unit))
        archived_history = manifest.find_history(execution_id)
        stored_events: list[StoredEvent] = []
        for part in manifest.parts:
            if (
                archived_history is not None
                and part.number in archived_history.parts
                and len(stored_events) < room
            ):
                data = await self._load_part(self._store, manifest.unit, part)
                stored_events += await asyncio.to_thread(_decode_events, data, execution_id, after)
        return stored_events[:room]

    async def _load_manifest(self, store: Payloads, unit: ManifestUnit) -> ArchiveManifest:
        archive_manifest = self._manifests.find_value(unit.manifest_id)
        if archive_manifest is None:
            archive_manifest = await units.find_manifest(store, unit)
            if archive_manifest is None:
                raise PayloadMissing(
                    f"manifest {unit.manifest_id} is not in the payload store, and its events are "
                    "not in the ledger"
                )
            self._manifests.keep_value(unit.manifest_id, archive_manifest)
        return archive_manifest

    async def _load_part(self, store: Payloads, unit: ManifestUnit, part: ArchivePart) -> bytes:
        data = self._parts.find_value(part.name)
        if data is None:
            data = await units.read_part(store, unit, part)
            self._parts.keep_value(part.name, data, weight=len(data))
        return data


class ArchivedAudit:
    """A `LedgerAudit` that goes on in the archive where the ledger has nothing more."""

    def __init__(self, audit: LedgerAudit, archive: ArchiveReader) -> None:
        self._audit = audit
        self._archive = archive

    async def read_stored_events(
        self, execution_id: ExecutionId, *, after_version: int = 0, events_max: int = 1000
    ) -> list[StoredEvent]:
        """Return at most `events_max` events after a version as they are kept, in order."""
        page = await self._audit.read_stored_events(
            execution_id, after_version=after_version, events_max=events_max
        )
        if page and page[0].stream_version == after_version + 1:
            return page
        before = await self._archive.read_archived(
            execution_id, after_version=after_version, events_max=events_max
        )
        return (before + _drop_archived(page, before))[:events_max]

    async def find_owner(self, execution_id: ExecutionId) -> Owner | None:
        """Return whose a history is, or None before it began; an owner outlives its events."""
        return await self._audit.find_owner(execution_id)

    async def list_histories(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        after: ExecutionId | None = None,
        heads_max: int,
    ) -> list[HistoryHead]:
        """Return the heads of a tenant's histories; the ledger keeps those of archived ones."""
        return await self._audit.list_histories(
            tenant_id=tenant_id, organization_id=organization_id, after=after, heads_max=heads_max
        )

    async def find_version_at(self, execution_id: ExecutionId, at: datetime) -> int:
        """Return the latest version whose event time is not after an instant; 0 for none."""
        version = await self._audit.find_version_at(execution_id, at)
        return version or histories.find_version_at(await self._read_all_archived(execution_id), at)

    async def find_version_of(self, execution_id: ExecutionId, event_id: EventId) -> int | None:
        """Return the version of an event, or None when the history has no such event."""
        version = await self._audit.find_version_of(execution_id, event_id)
        return version or histories.find_version_of(
            await self._read_all_archived(execution_id), event_id
        )

    async def list_buckets(self, execution_id: ExecutionId, *, buckets: int) -> list[TimeBucket]:
        """Cut the time of a run into equal spans and return those with events, in order."""
        stored_events = await self._read_all_archived(execution_id)
        if not stored_events:
            return await self._audit.list_buckets(execution_id, buckets=buckets)
        all_events = list(stored_events)
        while page := await self.read_stored_events(
            execution_id, after_version=all_events[-1].stream_version, events_max=_PAGE_EVENTS
        ):
            all_events += page
        return histories.list_buckets(all_events, buckets=buckets)

    async def _read_all_archived(self, execution_id: ExecutionId) -> list[StoredEvent]:
        stored_events: list[StoredEvent] = []
        while page := await self._archive.read_archived(
            execution_id,
            after_version=stored_events[-1].stream_version if stored_events else 0,
            events_max=_PAGE_EVENTS,
        ):
            stored_events += page
        return stored_events


class ArchivedReader:
    """A `LedgerReader` that goes on in the archive where the ledger has nothing more."""

    def __init__(self, ledger: LedgerReader, archive: ArchiveReader) -> None:
        self._ledger = ledger
        self._archive = archive

    async def find_head(self, execution_id: ExecutionId) -> HistoryHead | None:
        """Return where a history ends, or None when it has not begun."""
        return await self._ledger.find_head(execution_id)

    async def list_heads(self, execution_ids: Sequence[ExecutionId]) -> list[HistoryHead]:
        """Return the heads of the histories that have begun, in any order."""
        return await self._ledger.list_heads(execution_ids)

    async def read_events(
        self, execution_id: ExecutionId, *, after_version: int = 0, events_max: int = 1000
    ) -> list[Envelope]:
        """Return at most `events_max` events after a version, in order."""
        page = await self._ledger.read_events(
            execution_id, after_version=after_version, events_max=events_max
        )
        if page and page[0].stream_version == after_version + 1:
            return page
        before = await self._archive.read_archived(
            execution_id, after_version=after_version, events_max=events_max
        )
        return (
            [stored_event.read_envelope(item) for item in before] + _drop_archived(page, before)
        )[:events_max]

    async def list_item_results(
        self, execution_id: ExecutionId, run_id: str, *, after_index: int = -1, results_max: int
    ) -> list[ItemEnd]:
        """Return a page of the outcomes of one loop epoch's items, in item order."""
        item_results = await self._ledger.list_item_results(
            execution_id, run_id, after_index=after_index, results_max=results_max
        )
        return item_results or histories.list_item_results(
            await self._read_whole_history(execution_id),
            run_id,
            after_index=after_index,
            results_max=results_max,
        )

    async def list_failed_items(
        self, execution_id: ExecutionId, run_id: str, *, after_index: int = -1, results_max: int
    ) -> list[CallError]:
        """Return a page of the items of one loop epoch that failed, in item order."""
        call_errors = await self._ledger.list_failed_items(
            execution_id, run_id, after_index=after_index, results_max=results_max
        )
        return call_errors or histories.list_failed_items(
            await self._read_whole_history(execution_id),
            run_id,
            after_index=after_index,
            results_max=results_max,
        )

    async def list_frame_results(
        self,
        execution_id: ExecutionId,
        stage_id: str,
        *,
        after: tuple[int, int] = (-1, -1),
        results_max: int,
    ) -> list[FrameEnd]:
        """Return a page of the outcomes of one stage's frames, by slot and frame index."""
        frame_results = await self._ledger.list_frame_results(
            execution_id, stage_id, after=after, results_max=results_max
        )
        return frame_results or histories.list_frame_results(
            await self._read_whole_history(execution_id),
            stage_id,
            after=after,
            results_max=results_max,
        )

    async def find_by_key(self, execution_id: ExecutionId, key: str) -> Envelope | None:
        """Return the event that took effect under an idempotency key, or None when none has."""
        envelope = await self._ledger.find_by_key(execution_id, key)
        return envelope or histories.find_by_key(await self._read_whole_history(execution_id), key)

    async def find_outcome(self, execution_id: ExecutionId, run_id: str) -> Envelope | None:
        """Return the event that ended the work of a run as a whole, or None while it lasts."""
        envelope = await self._ledger.find_outcome(execution_id, run_id)
        return envelope or histories.find_outcome(
            await self._read_whole_history(execution_id), run_id
        )

    async def trace_runs(
        self, execution_id: ExecutionId, step: str, *, links_max: int
    ) -> list[LineageLink]:
        """Return the latest run of a step, the run whose end started it, and so on, back."""
        lineage_links = await self._ledger.trace_runs(execution_id, step, links_max=links_max)
        return lineage_links or histories.trace_links(
            await self._read_whole_history(execution_id), step, links_max=links_max
        )

    async def _read_whole_history(self, execution_id: ExecutionId) -> list[Envelope]:
        """Return all of a history of which something has left the ledger; else nothing."""
        if not await self._archive.read_archived(execution_id, after_version=0, events_max=1):
            return []
        envelopes: list[Envelope] = []
        while page := await self.read_events(
            execution_id,
            after_version=envelopes[-1].stream_version if envelopes else 0,
            events_max=_PAGE_EVENTS,
        ):
            envelopes += page
        return envelopes


class ArchivedLedger(ArchivedReader):
    """An `ArchivedReader` that appends as well: new events go into the ledger."""

    def __init__(self, ledger: LedgerReader, writer: LedgerWriter, archive: ArchiveReader) -> None:
        super().__init__(ledger, archive)
        self._writer = writer

    async def append(self, batch: Append) -> AppendResult:
        """Write events and messages in one transaction."""
        return await self._writer.append(batch)


def _drop_archived(page: list[Event], archived: list[StoredEvent]) -> list[Event]:
    """Return the events of a ledger page that follow the events read from the archive."""
    last = archived[-1].stream_version if archived else 0
    return [event for event in page if event.stream_version > last]


def _decode_events(data: bytes, execution_id: ExecutionId, after: int) -> list[StoredEvent]:
    return list(parquet.decode(data, execution_id=execution_id, after_version=after))
