"""Views of executions, stages, loops, events, and messages that an execution waits for."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET, Struct, UnsetType, structs

from noetl_contracts import codec
from noetl_contracts.events.command_events import CommandStarted
from noetl_contracts.events.step_events import CallDone, CallError
from noetl_contracts.identity import actors
from noetl_contracts.identity.actors import Actor
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import OpenWait
from noetl_contracts.requests import inbox
from noetl_contracts.status import TERMINAL_EXECUTION, ExecutionStatus
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.pools.lost_work import LostWork
from noetl_planner.api.pools.pool_waits import Waiting
from noetl_planner.api.pools.store_waits import StoreWaitView
from noetl_playbook.views import ctx_references, error_view
from noetl_storage.ports import history_ports
from noetl_storage.ports.history_ports import ShownEvent

MESSAGES_MAX = 20


class AwaitedMessage(Struct, frozen=True, kw_only=True):
    """A message that a step waits for, since when, and when it waits no longer.

    `approval_id` is set for an approval, `correlation_key` for a signal. `command` is that of the
    command line which sends it, empty for a callback: only its token's holder sends that.
    """

    step: str
    task: str
    mode: str
    command: str
    since: datetime | None
    until: datetime | None
    approval_id: str | None = None
    correlation_key: str | None = None
    title: str | None = None
    options: list[str] = []


async def list_awaited_messages(
    services: ApiServices, execution_id: ExecutionId
) -> list[AwaitedMessage]:
    """Return what an execution waits for, the longest waiting first, 20 at most."""
    waits = await services.history.projections.list_waits(
        **services.tenant_scope, execution_id=execution_id, waits_max=MESSAGES_MAX
    )
    return [_view_awaited_message(wait) for wait in waits]


def _view_awaited_message(waiting: OpenWait) -> AwaitedMessage:
    wait = waiting.wait
    is_approval, is_signal = wait.mode == inbox.APPROVAL, wait.mode == inbox.SIGNAL
    return AwaitedMessage(
        step=waiting.step,
        task=wait.task,
        mode=wait.mode,
        command=inbox.build_send_command(wait),
        since=waiting.since,
        until=inbox.find_wait_end(waiting),
        approval_id=wait.address.partition("/")[2] if is_approval else None,
        correlation_key=wait.correlation_key if is_signal else None,
        title=wait.title,
        options=wait.options,
    )


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
    # Who asked, of an event that answers a request; of a release that did not keep it, `unknown`.
    actor: Actor | UnsetType = UNSET


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


class ControlAnswer(Struct, frozen=True, kw_only=True):
    """What becomes of a wish about an execution; a terminal one stays as it is."""

    execution_id: ExecutionId
    status: str
    accepted: bool


class LateView(Struct, frozen=True, kw_only=True):
    """A deadline that has passed: of a step's run or, without a step, of the whole execution.

    It passed at `since`; with `ended_at` what was late is over.
    """

    step: str | None
    run_id: str | None
    since: datetime
    ended_at: datetime | None


class Summary(Struct, frozen=True, kw_only=True):
    """One execution in a list; the version of a `draft` is its number, below zero.

    `late_since` is the first deadline that something which still goes on has passed.
    """

    execution_id: str
    path: str
    version: int | None
    draft: bool
    status: str
    parent_execution_id: str | None
    current_step: str | None
    frames: int
    rows: int
    error: Any
    started_at: datetime | None
    ended_at: datetime | None
    duration: float | None
    late_since: datetime | None = None


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
    """How an execution stands; the version of a `draft` is its number, below zero."""

    execution_id: str
    path: str
    version: int | None
    draft: bool
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
    lost: list[LostWork] = []
    messages: list[AwaitedMessage] = []
    store_waits: list[StoreWaitView] = []
    late: list[LateView] = []


def view_event(envelope: Envelope) -> EventView:
    """Show one event."""
    return _build_event_view(history_ports.build_shown_event(envelope))


def view_events(history: Iterable[Envelope]) -> list[EventView]:
    """Show events in order, with those that are derived from them."""
    return view_shown_events(history_ports.build_shown_event(envelope) for envelope in history)


def view_shown_events(events: Iterable[ShownEvent]) -> list[EventView]:
    """Show events in order, with those that are derived from them.

    The end of a loop's item is shown as `loop.item` too, and that a worker took a command as
    `command.claimed`. These are not in the ledger, which has one event for each: they bear its
    version.
    """
    views: list[EventView] = []
    for event in events:
        view = _build_event_view(event)
        if event.event_type == _COMMAND_STARTED:
            views.append(_build_claim_view(view))
        views.append(view)
        if event.event_type in _CALL_ENDED and event.context.get("item_index") is not None:
            views.append(_build_item_view(view))
    return views


def _build_event_view(event: ShownEvent) -> EventView:
    return EventView(
        event_id=event.event_id,
        version=event.version,
        event_type=event.event_type,
        node_id=event.context.get("run_id"),
        node_name=event.context.get("step"),
        status=_find_event_status(event.context, event.result),
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
        error=error_view.show_error_summary(event.error),
        meta=event.meta,
        actor=actors.upcast_actor(event.event_type, event.meta) or UNSET,
    )


def _build_claim_view(started: EventView) -> EventView:
    return structs.replace(
        started,
        event_id=f"{started.event_id}-claimed",
        event_type=COMMAND_CLAIMED,
        meta={"derived_from": started.event_id},
    )


def _build_item_view(call: EventView) -> EventView:
    return structs.replace(
        call,
        event_id=f"{call.event_id}-item",
        event_type=LOOP_ITEM,
        status="ok" if call.event_type == _CALL_DONE else "error",
        context={key: call.context[key] for key in _ITEM_KEYS if key in call.context},
        result=None,
        meta={"derived_from": call.event_id},
    )


def build_pending_row(execution_id: ExecutionId, path: str, version: int | None) -> Row:
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


def view_summary(row: Row, *, now: datetime) -> Summary:
    """Show an execution in a list."""
    return Summary(
        execution_id=row["execution_id"],
        path=row["path"],
        version=row.get("catalog_version"),
        draft=(row.get("catalog_version") or 0) < 0,
        status=row["status"],
        parent_execution_id=row.get("parent_execution_id"),
        current_step=_find_current_step(row),
        frames=row.get("frames", 0),
        rows=row.get("rows", 0),
        error=error_view.show_error_summary(row.get("error")),
        started_at=row.get("started_at"),
        ended_at=row.get("ended_at"),
        duration=_compute_duration_s(row, now),
        late_since=min(
            (mark.since for mark in list_late_marks(row) if mark.ended_at is None), default=None
        ),
    )


def list_late_marks(row: Row) -> list[LateView]:
    """Return what of an execution has passed a deadline, the latest at most."""
    return codec.convert_value(row.get("late") or [], list[LateView])


def view_status(
    row: Row,
    *,
    stages: list[Row],
    loops: list[Row],
    waiting: list[Waiting],
    lost: list[LostWork],
    messages: list[AwaitedMessage],
    store_waits: list[StoreWaitView],
    now: datetime,
) -> StatusView:
    """Show how an execution stands."""
    return StatusView(
        execution_id=row["execution_id"],
        path=row["path"],
        version=row.get("catalog_version"),
        draft=(row.get("catalog_version") or 0) < 0,
        status=row["status"],
        completed=row["status"] == ExecutionStatus.COMPLETED,
        failed=row["status"] == ExecutionStatus.FAILED,
        current_step=_find_current_step(row),
        completed_steps=list(row.get("completed_steps") or []),
        variables=ctx_references.show_markers(row.get("variables") or {}),
        warnings=row.get("warnings") or 0,
        error=error_view.show_error_summary(row.get("error") or _find_cancellation(row)),
        duration=_compute_duration_s(row, now),
        started_at=row.get("started_at"),
        ended_at=row.get("ended_at"),
        stages=[view_stage(stage) for stage in sort_stages(stages)],
        loops=[view_loop(loop) for loop in sort_loops(loops)],
        waiting=waiting,
        lost=lost,
        messages=messages,
        store_waits=store_waits,
        late=list_late_marks(row),
    )


def sort_loops(rows: Iterable[Row]) -> list[Row]:
    """Sort rows of loops as the loops began; their keys have no order."""
    # Runs of one loop may begin in one decision: the events of the later one follow.
    return sorted(rows, key=lambda row: (row["started_at"], int(row["last_event_id"] or 0)))


def sort_stages(rows: Iterable[Row]) -> list[Row]:
    """Sort rows of stages as the stages were opened; their keys have no order."""
    return sorted(rows, key=lambda row: int(row["opened_event_id"]))


def view_stage(row: Row) -> StageView:
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


def view_loop(row: Row) -> LoopView:
    """Show a loop."""
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


def _find_cancellation(row: Row) -> Any:
    if row["status"] != ExecutionStatus.CANCELLED:
        return None
    return {"kind": "cancelled", "code": "CANCELLED", "message": "the execution was cancelled"}


def _compute_duration_s(row: Row, now: datetime) -> float | None:
    started = row.get("started_at")
    if started is None:
        return None
    elapsed: timedelta = (row.get("ended_at") or now) - started
    return round(max(0.0, elapsed.total_seconds()), 3)


def _find_event_status(body: dict[str, Any], result: Any) -> str | None:
    """Return the status that the event states, its own before its result's."""
    status = body.get("status")
    if status is None and isinstance(result, dict):
        status = result.get("status")
    return status


def _find_current_step(row: Row) -> str | None:
    """Name the step that a failed execution failed at, else the one that it is at or was last."""
    error = row.get("error") or {}
    at: str | None = error.get("step") or row.get("current_step")
    return at
