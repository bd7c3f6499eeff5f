"""The ledger in memory."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import structs

from noetl_contracts.envelope import Envelope
from noetl_contracts.events.frame import FrameEnd
from noetl_contracts.events.step import CallError, ItemEnd
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import Append, Appended, Head, Link, StreamAppend
from noetl_storage import appends, histories
from noetl_storage.errors import DuplicateKey, ShardLost, VersionConflict
from noetl_storage.memory.store import MemoryStore
from noetl_storage.payload_ports import Owner


class MemoryLedger:
    """Checks everything before it writes anything."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def find_head(self, execution_id: ExecutionId) -> Head | None:
        """Return where a history ends, or None when it has not begun."""
        return self._store.head_by_execution.get(execution_id)

    async def list_heads(self, execution_ids: Sequence[ExecutionId]) -> list[Head]:
        """Return the heads of the histories that have begun, in any order."""
        heads = self._store.head_by_execution
        return [
            heads[execution] for execution in dict.fromkeys(execution_ids) if execution in heads
        ]

    async def read(
        self, execution_id: ExecutionId, *, after_version: int = 0, events_max: int = 1000
    ) -> list[Envelope]:
        """Return at most `events_max` events after a version, in order."""
        history = self._history(execution_id)
        return history[after_version : after_version + events_max]

    async def list_item_results(
        self, execution_id: ExecutionId, run_id: str, *, after_index: int = -1, results_max: int
    ) -> list[ItemEnd]:
        """Return a page of the outcomes of one loop epoch's items, in item order."""
        return histories.item_results(
            self._history(execution_id), run_id, after_index=after_index, results_max=results_max
        )

    async def list_failed_items(
        self, execution_id: ExecutionId, run_id: str, *, after_index: int = -1, results_max: int
    ) -> list[CallError]:
        """Return a page of the items of one loop epoch that failed, in item order."""
        return histories.failed_items(
            self._history(execution_id), run_id, after_index=after_index, results_max=results_max
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
        return histories.frame_results(
            self._history(execution_id), stage_id, after=after, results_max=results_max
        )

    async def find_by_key(self, execution_id: ExecutionId, key: str) -> Envelope | None:
        """Return the event that took effect under an idempotency key, or None when none has."""
        return histories.by_key(self._history(execution_id), key)

    async def find_outcome(self, execution_id: ExecutionId, run_id: str) -> Envelope | None:
        """Return the event that ended the work of a run as a whole, or None while it lasts."""
        return histories.outcome(self._history(execution_id), run_id)

    async def trace(self, execution_id: ExecutionId, step: str, *, links_max: int) -> list[Link]:
        """Return the latest run of a step, the run whose end started it, and so on, back."""
        return histories.trace(self._history(execution_id), step, links_max=links_max)

    async def append(self, batch: Append) -> Appended:
        """Write events and messages at once."""
        streams = appends.checked_streams(batch)
        self._check_fence(batch)
        for stream in streams:
            self._check_version(stream)
        keys = self._new_keys(streams)
        if batch.begun is not None:
            self._store.keep_begun(batch.begun, latest=batch.latest)
        now = self._store.now()
        for stream in streams:
            self._write(stream, now)
        self._store.keys |= keys
        for settled in batch.settled_requests:
            self._store.settle_request(settled)
        outbox_ids = [
            self._store.enqueue(message, owner=batch.fence.owner, lease_s=batch.publish_lease_s)
            for message in batch.messages
        ]
        return Appended(outbox_ids=outbox_ids, ingest_time=now)

    def _history(self, execution_id: ExecutionId) -> list[Envelope]:
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

    def _new_keys(self, streams: list[StreamAppend]) -> set[tuple[str, str]]:
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

    def _write(self, stream: StreamAppend, now: datetime) -> None:
        history = self._store.history_by_execution.setdefault(stream.execution_id, [])
        history.extend(structs.replace(one, ingest_time=now) for one in stream.envelopes)
        last = stream.envelopes[-1]
        self._store.owner_by_execution[stream.execution_id] = Owner(
            tenant_id=last.tenant_id, organization_id=last.organization_id
        )
        self._store.head_moved_at[stream.execution_id] = now
        self._store.head_by_execution[stream.execution_id] = Head(
            execution_id=stream.execution_id,
            version=last.stream_version,
            checksum=last.envelope_checksum,
        )
