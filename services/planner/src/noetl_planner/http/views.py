"""The JSON shapes of the API (playbook language, section 18)."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET, Struct, UnsetType, structs

from noetl_contracts.envelope import Envelope
from noetl_contracts.events.command import CommandStarted
from noetl_contracts.events.step import CallDone, CallError
from noetl_contracts.ids import ExecutionId
from noetl_contracts.status import TERMINAL_EXECUTION, ExecutionStatus
from noetl_planner.http.awaited_messages import AwaitedMessage
from noetl_planner.http.waiting import Waiting
from noetl_playbook import error_view, kept
from noetl_storage import page_ports
from noetl_storage.page_ports import ShownEvent

Row = dict[str, Any]
LOOP_ITEM = "loop.item"
COMMAND_CLAIMED = "command.claimed"
_COMMAND_STARTED = CommandStarted.__struct_config__.tag
_CALL_DONE = CallDone.__struct_config__.tag
_CALL_ENDED = frozenset({_CALL_DONE, CallError.__struct_config__.tag})
_ITEM_KEYS = ("step", "run_id", "command_id", "item_index")


class EventView(Struct, frozen=True, kw_only=True):
    """One event as playbooks, the CLI and people read it: its envelope and its body.

    It happened at `event_time`; the ledger took it at `ingest_time`, which `created_at` is too.
    """

    event_id: str
    version: int
    event_type: str
    node_id: str | None
    node_name: str | None
    status: str | None
    event_time: datetime
    ingest_time: datetime | None
    created_at: datetime
    tenant_id: str
    organization_id: str
    execution_id: str
    stream_id: str
    aggregate_id: str
    aggregate_type: str
    schema_name: str
    schema_version: int
    producer: str
    causation_id: str | None
    correlation_id: str
    idempotency_key: str | None
    payload_ref: dict[str, Any] | None
    context: dict[str, Any]
    result: Any
    error: Any
    meta: dict[str, Any]


class Accepted(Struct, frozen=True, kw_only=True):
    """A durable request to run a playbook; `deduplicated` when its key was known before.

    `warnings` are there where something was given that the playbook does not use.
    """

    execution_id: ExecutionId
    status: str
    path: str
    # Below zero for a draft.
    version: int
    deduplicated: bool = False
    warnings: list[str] | UnsetType = UNSET


class Ended(Accepted, frozen=True, kw_only=True):
    """A run that is over already; `end` is the event that ended it."""

    end: EventView


class WishAnswer(Struct, frozen=True, kw_only=True):
    """What becomes of a wish about an execution; a terminal one stays as it is."""

    execution_id: ExecutionId
    status: str
    accepted: bool


class Summary(Struct, frozen=True, kw_only=True):
    """One execution in a list."""

    execution_id: str
    path: str
    version: int | None
    status: str
    parent_execution_id: str | None
    current_step: str | None
    frames: int
    rows: int
    error: Any
    started_at: datetime | None
    ended_at: datetime | None
    duration: float | None


class StageView(Struct, frozen=True, kw_only=True):
    """How far a stage is."""

    stage_id: str
    run_id: str
    step: str
    kind: str
    status: str
    slots: int
    frames: int
    frames_failed: int
    rows: int
    rows_failed: int
    started_at: datetime | None
    ended_at: datetime | None
    parent_stage_id: str | None


class LoopView(Struct, frozen=True, kw_only=True):
    """How far a loop over a collection or a cursor is; a cursor's total is not known."""

    run_id: str
    step: str
    mode: str
    status: str
    total: int | None
    done: int
    failed: int
    in_flight: int
    stage_id: str | None


class StatusView(Struct, frozen=True, kw_only=True):
    """How an execution stands."""

    execution_id: str
    path: str
    version: int | None
    status: str
    completed: bool
    failed: bool
    current_step: str | None
    completed_steps: list[str]
    variables: dict[str, Any]
    warnings: int
    error: Any
    duration: float | None
    started_at: datetime | None
    ended_at: datetime | None
    stages: list[StageView]
    loops: list[LoopView]
    waiting: list[Waiting] = []
    messages: list[AwaitedMessage] = []


def event_view(envelope: Envelope) -> EventView:
    """Show one event."""
    return _event_view(page_ports.shown(envelope))


def event_views(history: Iterable[Envelope]) -> list[EventView]:
    """Show events in order, with those that are derived from them."""
    return shown_views(page_ports.shown(envelope) for envelope in history)


def shown_views(events: Iterable[ShownEvent]) -> list[EventView]:
    """Show events in order, with those that are derived from them.

    The end of a loop's item is shown as `loop.item` too, and that a worker took a command as
    `command.claimed`. These are not in the ledger, which has one event for each: they bear its
    version.
    """
    views: list[EventView] = []
    for event in events:
        view = _event_view(event)
        if event.event_type == _COMMAND_STARTED:
            views.append(_claim_view(view))
        views.append(view)
        if event.event_type in _CALL_ENDED and event.context.get("item_index") is not None:
            views.append(_item_view(view))
    return views


def _event_view(event: ShownEvent) -> EventView:
    return EventView(
        event_id=event.event_id,
        version=event.version,
        event_type=event.event_type,
        node_id=event.context.get("run_id"),
        node_name=event.context.get("step"),
        status=_status(event.context, event.result),
        event_time=event.event_time,
        ingest_time=event.ingest_time,
        created_at=event.ingest_time or event.event_time,
        tenant_id=event.tenant_id,
        organization_id=event.organization_id,
        execution_id=event.execution_id,
        stream_id=event.stream_id,
        aggregate_id=event.aggregate_id,
        aggregate_type=event.aggregate_type,
        schema_name=event.schema_name,
        schema_version=event.schema_version,
        producer=event.producer,
        causation_id=event.causation_id,
        correlation_id=event.correlation_id,
        idempotency_key=event.idempotency_key,
        payload_ref=event.payload_ref,
        context=event.context,
        result=event.result,
        error=error_view.summarized(event.error),
        meta=event.meta,
    )


def _claim_view(started: EventView) -> EventView:
    return structs.replace(
        started,
        event_id=f"{started.event_id}-claimed",
        event_type=COMMAND_CLAIMED,
        meta={"derived_from": started.event_id},
    )


def _item_view(call: EventView) -> EventView:
    return structs.replace(
        call,
        event_id=f"{call.event_id}-item",
        event_type=LOOP_ITEM,
        status="ok" if call.event_type == _CALL_DONE else "error",
        context={key: call.context[key] for key in _ITEM_KEYS if key in call.context},
        result=None,
        meta={"derived_from": call.event_id},
    )


def pending_row(execution_id: ExecutionId, path: str, version: int | None) -> Row:
    """Stand in for the row of an accepted execution that no projector has written."""
    return {
        "execution_id": execution_id,
        "path": path,
        "catalog_version": version,
        "status": str(ExecutionStatus.PENDING),
    }


def is_terminal(row: Row) -> bool:
    """Tell whether an execution's row can change no more."""
    return row["status"] in TERMINAL_EXECUTION


def summary(row: Row, *, now: datetime) -> Summary:
    """Show an execution in a list."""
    return Summary(
        execution_id=row["execution_id"],
        path=row["path"],
        version=row.get("catalog_version"),
        status=row["status"],
        parent_execution_id=row.get("parent_execution_id"),
        current_step=_current_step(row),
        frames=row.get("frames", 0),
        rows=row.get("rows", 0),
        error=error_view.summarized(row.get("error")),
        started_at=row.get("started_at"),
        ended_at=row.get("ended_at"),
        duration=_duration_s(row, now),
    )


def status_view(
    row: Row,
    *,
    stages: list[Row],
    loops: list[Row],
    waiting: list[Waiting],
    messages: list[AwaitedMessage],
    now: datetime,
) -> StatusView:
    """Show how an execution stands."""
    return StatusView(
        execution_id=row["execution_id"],
        path=row["path"],
        version=row.get("catalog_version"),
        status=row["status"],
        completed=row["status"] == ExecutionStatus.COMPLETED,
        failed=row["status"] == ExecutionStatus.FAILED,
        current_step=_current_step(row),
        completed_steps=list(row.get("completed_steps") or []),
        variables=kept.shown(row.get("variables") or {}),
        warnings=row.get("warnings") or 0,
        error=error_view.summarized(row.get("error") or _called_off(row)),
        duration=_duration_s(row, now),
        started_at=row.get("started_at"),
        ended_at=row.get("ended_at"),
        stages=[stage_view(stage) for stage in stages],
        loops=[_loop_view(loop) for loop in loops],
        waiting=waiting,
        messages=messages,
    )


def stage_view(row: Row) -> StageView:
    """Show a stage."""
    return StageView(
        stage_id=row["stage_id"],
        run_id=row["run_id"],
        step=row["step_name"],
        kind=row["kind"],
        status=row["status"],
        slots=row["slots"],
        frames=row["frames"],
        frames_failed=row["frames_failed"],
        rows=row["rows"],
        rows_failed=row["rows_failed"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        parent_stage_id=row["parent_stage_id"],
    )


def _loop_view(row: Row) -> LoopView:
    return LoopView(
        run_id=row["run_id"],
        step=row["step_name"],
        mode=row["mode"],
        status=row["status"],
        total=row["total"],
        done=row["done"],
        failed=row["failed"],
        in_flight=row["in_flight"],
        stage_id=row["stage_id"],
    )


def _called_off(row: Row) -> Any:
    if row["status"] != ExecutionStatus.CANCELLED:
        return None
    return {"kind": "cancelled", "code": "CANCELLED", "message": "the execution was cancelled"}


def _duration_s(row: Row, now: datetime) -> float | None:
    started = row.get("started_at")
    if started is None:
        return None
    elapsed: timedelta = (row.get("ended_at") or now) - started
    return round(max(0.0, elapsed.total_seconds()), 3)


def _status(body: dict[str, Any], result: Any) -> str | None:
    """Return the status that the event states, its own before its result's."""
    own = body.get("status")
    if own is None and isinstance(result, dict):
        own = result.get("status")
    return own


def _current_step(row: Row) -> str | None:
    """Name the step that a failed execution failed at, else the one that it is at or was last."""
    error = row.get("error") or {}
    at: str | None = error.get("step") or row.get("current_step")
    return at
