"""What showing an execution asks of storage: where it stands and a page of its events, at once."""

from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct

from noetl_contracts import envelope
from noetl_contracts.envelope import Envelope
from noetl_contracts.events import event_type
from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, TenantId


class ShownEvent(Struct, frozen=True, kw_only=True):
    """An event as people read it: today's shape in plain values, without its place in the chain.

    `at` is when the ledger took it, or when it happened where no ledger says.
    """

    event_id: EventId
    version: int
    event_type: str
    at: datetime
    context: dict[str, Any]
    result: Any
    error: Any
    meta: dict[str, Any]


class HistoryPage(Struct, frozen=True, kw_only=True):
    """An execution's read model in brief, where its history ends, and some of its events."""

    path: str
    status: str
    catalog_version: int | None
    parent_execution_id: str | None
    version: int
    events: list[ShownEvent]


class HistoryPages(Protocol):
    """Reads executions for people; nothing is decided by what it says."""

    async def find_page(
        self,
        execution_id: ExecutionId,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        after_version: int,
        events_max: int,
    ) -> HistoryPage | None:
        """Return a projected execution of an owner with events after a version, of one instant.

        None for any other. What has left the ledger is not among the events.
        """


def shown(one: Envelope) -> ShownEvent:
    """Show an envelope."""
    context, result, error = envelope.split_body(one.event)
    return ShownEvent(
        event_id=one.event_id,
        version=one.stream_version,
        event_type=event_type(one.event),
        at=one.ingest_time or one.event_time,
        context=context,
        result=result,
        error=error,
        meta=one.meta,
    )
