"""What showing an execution asks of storage: where it stands and a page of its events, at once."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct

from noetl_contracts import envelope
from noetl_contracts.envelope import Envelope
from noetl_contracts.events import event_type
from noetl_contracts.events.step import CallError, StepEnter, StepExit, StepFailed
from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, RunId, TenantId


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

    async def find_run_events(
        self, execution_id: ExecutionId, *, after_version: int, runs_max: int
    ) -> list[ShownEvent]:
        """Return what began and ended runs of steps, in order: `runs_max` that began after it.

        The caller has checked whose execution it is. What has left the ledger is not among them.
        """


class RunEvents:
    """Chooses from a history what `find_run_events` returns."""

    def __init__(self, *, runs_max: int) -> None:
        self._runs_max = runs_max
        self._entered: set[RunId] = set()
        self.found: list[ShownEvent] = []

    def take(self, history: Iterable[Envelope]) -> None:
        """Look through the next part of the history."""
        for one in history:
            event = one.event
            if isinstance(event, StepEnter) and len(self._entered) < self._runs_max:
                self._entered.add(event.run_id)
            is_of_item = isinstance(event, CallError) and event.item_index is not None
            if (
                isinstance(event, StepEnter | StepFailed | StepExit | CallError)
                and event.run_id in self._entered
                and not is_of_item
            ):
                self.found.append(shown(one))


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
