"""The ledger in memory."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import structs

from noetl_contracts.events.frame_events import FrameEnd
from noetl_contracts.events.step_events import CallError, ItemEnd
from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import (
    Append,
    AppendResult,
    HistoryHead,
    LineageLink,
    StreamAppend,
)
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_storage.ledger import append_checks, histories
from noetl_storage.memory import states
from noetl_storage.memory.store import MemoryStore
from noetl_storage.ports.errors import DuplicateKey, ShardLost, VersionConflict
from noetl_storage.ports.history_ports import TimeBucket
from noetl_storage.ports.payload_ports import Owner


class MemoryLedger:
    """Checks everything before it writes anything."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def find_head(self, execution_id: ExecutionId) -> HistoryHead | None:
        """Return where a history ends, or None when it has not begun."""
        return self._store.head_by_execution.get(execution_id)

    async def list_heads(self, execution_ids: Sequence[ExecutionId]) -> list[HistoryHead]:
        """Return the heads of the histories that have begun, in any order.

        The reaper asks before it reports commands lost, and audits compare them with the ledger.
        """
        heads = self._store.head_by_execution
        return [
            heads[execution] for execution in dict.fromkeys(execution_ids) if execution in heads
        ]

    async def read_events(
        self, execution_id: ExecutionId, *, after_version: int = 0, events_max: int = 1000
    ) -> list[Envelope]:
        """Return at most `events_max` events after a version, in order."""
        history = self._get_history(execution_id)
        return history[after_version : after_version + events_max]

    async def list_item_results(
        self, execution_id: ExecutionId, run_id: str, *, after_index: int = -1, results_max: int
    ) -> list[ItemEnd]:
        """Return a page of the outcomes of one loop epoch's items, in item order."""
        return histories.list_item_results(
            self._get_history(execution_id),
            run_id,
            after_index=after_index,
            results_max=results_max,
        )

    async def list_failed_items(
        self, execution_id: ExecutionId, run_id: str, *, after_index: int = -1, results_max: int
    ) -> list[CallError]:
        """Return a page of the items of one loop epoch that failed, in item order."""
        return histories.list_failed_items(
            self._get_history(execution_id),
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
        return histories.list_frame_results(
            self._get_history(execution_id), stage_id, after=after, results_max=results_max
        )

    async def find_by_key(self, execution_id: ExecutionId, key: str) -> Envelope | None:
        """Return the event that took effect under an idempotency key, or None when none has."""
        return histories.find_by_key(self._get_history(execution_id), key)

    async def find_outcome(self, execution_id: ExecutionId, run_id: str) -> Envelope | None:
        """Return the event that ended the work of a run as a whole, or None while it lasts."""
        return histories.find_outcome(self._get_history(execution_id), run_id)

    async def trace_runs(
        self, execution_id: ExecutionId, step: str, *, links_max: int
    ) -> list[LineageLink]:
        """Return the latest run of a step, the run whose end started it, and so on, back."""
        return histories.trace_links(self._get_history(execution_id), step, links_max=links_max)

    async def append(self, batch: Append) -> AppendResult:
        """Write events and messages at once."""
        streams = append_checks.check_streams(batch)
        self._check_fence(batch)
        for stream in streams:
            self._check_version(stream)
        keys = self._collect_new_keys(streams)
        states.check_changes(self._store, batch.states)
        if batch.begun is not None:
            self._store.keep_settled_request(batch.begun, latest=batch.latest)
        now = self._store.now()
        for stream in streams:
            self._write_stream(stream, now)
        states.write_changes(self._store, batch.states, now)
        self._store.keys |= keys
        for settled_request in batch.settled_requests:
            self._store.settle_request(settled_request)
        outbox_ids = [
            self._store.enqueue_message(
                message, owner=batch.fence.owner, lease_s=batch.publish_lease_s
            )
            for message in batch.messages
        ]
        return AppendResult(outbox_ids=outbox_ids, ingest_time=now)

    def _get_history(self, execution_id: ExecutionId) -> list[Envelope]:
        return self._store.history_by_execution.get(execution_id, [])

    def _check_fence(self, batch: Append) -> None:
        fence = batch.fence
        lease = self._store.lease_by_shard.get(fence.shard)
        is_held = (
            lease is not None
            and (lease.owner, lease.epoch) == (fence.owner, fence.epoch)
            and lease.leased_until > self._store.now()
        )
        if not is_held:
            raise ShardLost(
                f"shard {fence.shard} is not held by {fence.owner} at epoch {fence.epoch}"
            )

    def _check_version(self, stream: StreamAppend) -> None:
        head = self._store.head_by_execution.get(stream.execution_id)
        version = head.version if head is not None else 0
        if version != stream.expected_version:
            raise VersionConflict(
                f"execution {stream.execution_id} ends at {version}, "
                f"not at {stream.expected_version}"
            )

    def _collect_new_keys(self, streams: list[StreamAppend]) -> set[tuple[str, str]]:
        keys: set[tuple[str, str]] = set()
        for stream in streams:
            for envelope in stream.envelopes:
                if envelope.idempotency_key is None:
                    continue
                key = (stream.execution_id, envelope.idempotency_key)
                if key in keys or key in self._store.keys:
                    raise DuplicateKey(envelope.idempotency_key)
                keys.add(key)
        return keys

    def _write_stream(self, stream: StreamAppend, now: datetime) -> None:
        history = self._store.history_by_execution.setdefault(stream.execution_id, [])
        history.extend(structs.replace(envelope, ingest_time=now) for envelope in stream.envelopes)
        last = stream.envelopes[-1]
        self._store.owner_by_execution[stream.execution_id] = Owner(
            tenant_id=last.tenant_id, organization_id=last.organization_id
        )
        self._store.head_moved_at[stream.execution_id] = now
        self._store.head_by_execution[stream.execution_id] = HistoryHead(
            execution_id=stream.execution_id,
            version=last.stream_version,
            checksum=last.envelope_checksum,
        )


class MemoryLedgerAudit:
    """Shows the envelopes that were appended as plain values."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def read_stored_events(
        self, execution_id: ExecutionId, *, after_version: int = 0, events_max: int = 1000
    ) -> list[StoredEvent]:
        """Return at most `events_max` events after a version as they are kept, in order."""
        history = self._get_history(execution_id)
        return [
            stored_event.to_stored_event(envelope)
            for envelope in history[after_version : after_version + events_max]
        ]

    async def read_histories(
        self,
        execution_ids: Sequence[ExecutionId],
        *,
        after: tuple[ExecutionId, int],
        events_max: int,
    ) -> list[tuple[ExecutionId, int, StoredEvent]]:
        """Return events of many histories as they are kept, each with the place it stands at."""
        behind = (int(after[0]), after[1])
        histories = [
            (execution_id, envelope.stream_version, stored_event.to_stored_event(envelope))
            for execution_id in sorted(execution_ids, key=int)
            for envelope in self._get_history(execution_id)
            if (int(execution_id), envelope.stream_version) > behind
        ]
        return histories[:events_max]

    async def find_owner(self, execution_id: ExecutionId) -> Owner | None:
        """Return whose a history is, or None before it began; an owner outlives its events."""
        return self._store.owner_by_execution.get(execution_id)

    async def list_histories(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        after: ExecutionId | None = None,
        heads_max: int,
    ) -> list[HistoryHead]:
        """Return where the histories of a tenant end, by execution id, after one of them."""
        owner = Owner(tenant_id=tenant_id, organization_id=organization_id)
        heads = sorted(
            self._store.head_by_execution.values(),
            key=lambda history_head: int(history_head.execution_id),
        )
        history_heads = [
            head
            for head in heads
            if int(head.execution_id) > int(after or 0)
            and self._store.owner_by_execution.get(head.execution_id) == owner
        ]
        return history_heads[:heads_max]

    async def find_version_at(self, execution_id: ExecutionId, at: datetime) -> int:
        """Return the latest version whose event time is not after an instant; 0 for none."""
        return histories.find_version_at(self._get_history(execution_id), at)

    async def find_version_of(self, execution_id: ExecutionId, event_id: EventId) -> int | None:
        """Return the version of an event, or None when the history has no such event."""
        return histories.find_version_of(self._get_history(execution_id), event_id)

    async def list_buckets(self, execution_id: ExecutionId, *, buckets: int) -> list[TimeBucket]:
        """Cut the time of a run into equal spans and return those with events, in order."""
        return histories.list_buckets(self._get_history(execution_id), buckets=buckets)

    def _get_history(self, execution_id: ExecutionId) -> list[Envelope]:
        return self._store.history_by_execution.get(execution_id, [])
