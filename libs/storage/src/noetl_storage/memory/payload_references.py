"""Finds the payloads that histories in memory refer to; tests collect garbage with it."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import InboxMessage, Request
from noetl_contracts.payloads import ResultEnvelope
from noetl_storage.ledger.surfaces import LIVE_EXECUTION
from noetl_storage.memory.store import MemoryStore
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.process.digests import find_known_digests, list_hex_runs


class MemoryPayloadReferences:
    """Searches every event of an owner, a tenant's organization, for digests of payloads."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._owners_in_collection: set[Owner] = set()

    @asynccontextmanager
    async def hold_collector_lock(self, owner: Owner) -> AsyncIterator[bool]:
        """Lock the payload collection of an owner; False when another collector has the lock."""
        if owner in self._owners_in_collection:
            yield False
            return
        self._owners_in_collection.add(owner)
        try:
            yield True
        finally:
            self._owners_in_collection.discard(owner)

    async def list_owners(self) -> list[Owner]:
        """Return every owner that has a history, in order."""
        owners = {
            (history[0].tenant_id, history[0].organization_id)
            for history in self._store.history_by_execution.values()
            if history
        }
        return [
            Owner(tenant_id=tenant, organization_id=organization)
            for tenant, organization in sorted(owners)
        ]

    async def find_held_since(self, owner: Owner) -> datetime | None:
        """Return when the oldest unfinished execution or request of an owner began, or None."""
        started_at_times = [
            history[0].ingest_time
            for execution, history in self._store.history_by_execution.items()
            if _is_of_owner(history[0], owner) and self._is_live(execution)
        ]
        started_at_times += [
            stored_request.sent_at
            for stored_request in self._store.request_by_id.values()
            if stored_request.settled_at is None and _is_of_owner(stored_request.request, owner)
        ]
        return min((moment for moment in started_at_times if moment is not None), default=None)

    async def iterate_mentioned(
        self, owner: Owner, digests: Collection[str]
    ) -> AsyncIterator[set[str]]:
        """Yield those of the digests that a durable record of the owner mentions, page by page."""
        for stored_inbox_message in list(self._store.letter_by_id.values()):
            if stored_inbox_message.taken_by is None and _is_of_owner(
                stored_inbox_message.letter, owner
            ):
                yield find_known_digests(list_hex_runs(stored_inbox_message.letter.data), digests)
        for history in list(self._store.history_by_execution.values()):
            for envelope in list(history):
                if _is_of_owner(envelope, owner):
                    hex_runs = list_hex_runs(
                        codec.encode_json(self._drop_expired_reference(envelope))
                    )
                    yield find_known_digests(hex_runs, digests)

    async def list_known_executions(self, owner: Owner, executions: Collection[str]) -> set[str]:
        """Return those of the executions of which the owner has a history."""
        histories = self._store.history_by_execution
        return {
            execution
            for execution in executions
            if histories.get(execution) and _is_of_owner(histories[execution][0], owner)
        }

    def _drop_expired_reference(self, envelope: Envelope) -> Any:
        """Return an event without a reference whose time to live has passed."""
        event: Any = envelope.event
        result = getattr(event, "result", None)
        if not isinstance(result, ResultEnvelope) or envelope.ingest_time is None:
            return event
        ttl_s = result.context.get("ttl_s")
        age_s = (self._store.now() - envelope.ingest_time).total_seconds()
        if not isinstance(ttl_s, int | float) or age_s <= ttl_s:
            return event
        if self._is_live(envelope.execution_id):
            return event
        return structs.replace(event, result=structs.replace(result, reference=None))

    def _is_live(self, execution_id: str) -> bool:
        row = self._store.row_by_key_by_surface.get("execution", {}).get(
            (execution_id, execution_id)
        )
        head = self._store.head_by_execution[execution_id]
        position = self._store.position_by_execution.get(execution_id, 0)
        return row is None or row["status"] in LIVE_EXECUTION or position != head.version


def _is_of_owner(record: Envelope | Request | InboxMessage, owner: Owner) -> bool:
    return (record.tenant_id, record.organization_id) == (owner.tenant_id, owner.organization_id)
