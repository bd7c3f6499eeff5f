"""What showing an execution asks of storage: where it stands and a page of its events, at once."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Protocol, TypeGuard

from msgspec import Struct

from noetl_contracts import codec, envelope, envelope_fields
from noetl_contracts.envelope import Envelope
from noetl_contracts.events import Event, event_type
from noetl_contracts.events.step import CallDone, CallError, StepEnter, StepExit, StepFailed
from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, RunId, TenantId


class ShownEvent(Struct, frozen=True, kw_only=True):
    """An event as people read it: today's shape in plain values, without its place in the chain.

    `event_time` is when it happened, `ingest_time` when the ledger took it; None before that.
    """

    event_id: EventId
    tenant_id: TenantId
    organization_id: OrganizationId
    execution_id: ExecutionId
    stream_id: str
    version: int
    aggregate_id: str
    aggregate_type: str
    event_type: str
    schema_name: str
    schema_version: int
    event_time: datetime
    ingest_time: datetime | None
    producer: str
    causation_id: str | None
    correlation_id: str
    idempotency_key: str | None
    payload_ref: dict[str, Any] | None
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

        Among them are successes that failed attempts of tasks came before, but for those of items.

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
            if _is_of_run(event) and event.run_id in self._entered:
                self.found.append(shown(one))


def _is_of_run(event: Event) -> TypeGuard[StepEnter | StepFailed | StepExit | CallDone | CallError]:
    match event:
        case StepEnter() | StepFailed() | StepExit():
            return True
        case CallDone(item_index=None, tries=tries):
            return bool(tries)
        case CallError(item_index=None):
            return True
        case _:
            return False


def shown(one: Envelope) -> ShownEvent:
    """Show an envelope."""
    context, result, error = envelope.split_body(one.event)
    reference = None if one.payload_ref is None else codec.builtins(one.payload_ref)
    return ShownEvent(
        event_id=one.event_id,
        tenant_id=one.tenant_id,
        organization_id=one.organization_id,
        execution_id=one.execution_id,
        stream_id=one.stream_id,
        version=one.stream_version,
        aggregate_id=one.aggregate_id,
        aggregate_type=one.aggregate_type,
        event_type=event_type(one.event),
        schema_name=one.schema_name,
        schema_version=one.schema_version,
        event_time=one.event_time,
        ingest_time=one.ingest_time,
        producer=envelope_fields.upcast_producer(one.producer, one.tenant_id, one.organization_id),
        causation_id=one.causation_id,
        correlation_id=envelope_fields.upcast_correlation(one.correlation_id, one.execution_id),
        idempotency_key=one.idempotency_key,
        payload_ref=reference or envelope_fields.find_payload_ref(context, result),
        context=context,
        result=result,
        error=error,
        meta=one.meta,
    )
