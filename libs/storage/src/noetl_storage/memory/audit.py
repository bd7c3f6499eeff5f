"""Histories as memory keeps them, and where cuts fall in them."""

from collections.abc import Sequence
from datetime import datetime

from noetl_contracts import stored
from noetl_contracts.envelope import Envelope
from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import Head
from noetl_contracts.stored import StoredEvent
from noetl_storage import histories
from noetl_storage.audit_ports import Bucket
from noetl_storage.memory.store import MemoryStore
from noetl_storage.payload_ports import Owner


class MemoryLedgerAudit:
    """Shows the envelopes that were appended as plain values."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def read_stored(
        self, execution_id: ExecutionId, *, after_version: int = 0, events_max: int = 1000
    ) -> list[StoredEvent]:
        """Return at most `events_max` events after a version as they are kept, in order."""
        history = self._history(execution_id)
        return [stored.of(one) for one in history[after_version : after_version + events_max]]

    async def read_many(
        self,
        execution_ids: Sequence[ExecutionId],
        *,
        after: tuple[ExecutionId, int],
        events_max: int,
    ) -> list[tuple[ExecutionId, int, StoredEvent]]:
        """Return events of many histories as they are kept, each with the place it stands at."""
        behind = (int(after[0]), after[1])
        found = [
            (execution_id, one.stream_version, stored.of(one))
            for execution_id in sorted(execution_ids, key=int)
            for one in self._history(execution_id)
            if (int(execution_id), one.stream_version) > behind
        ]
        return found[:events_max]

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
    ) -> list[Head]:
        """Return where the histories of a tenant end, by execution id, after one of them."""
        owner = Owner(tenant_id=tenant_id, organization_id=organization_id)
        heads = sorted(
            self._store.head_by_execution.values(), key=lambda one: int(one.execution_id)
        )
        found = [
            head
            for head in heads
            if int(head.execution_id) > int(after or 0)
            and self._store.owner_by_execution.get(head.execution_id) == owner
        ]
        return found[:heads_max]

    async def find_version_at(self, execution_id: ExecutionId, at: datetime) -> int:
        """Return the latest version whose event time is not after an instant; 0 for none."""
        return histories.version_at(self._history(execution_id), at)

    async def find_version_of(self, execution_id: ExecutionId, event_id: EventId) -> int | None:
        """Return the version of an event, or None when the history has no such event."""
        return histories.version_of(self._history(execution_id), event_id)

    async def list_buckets(self, execution_id: ExecutionId, *, buckets: int) -> list[Bucket]:
        """Cut the time of a run into equal spans and return those with events, in order."""
        return histories.buckets(self._history(execution_id), buckets=buckets)

    def _history(self, execution_id: ExecutionId) -> list[Envelope]:
        return self._store.history_by_execution.get(execution_id, [])
