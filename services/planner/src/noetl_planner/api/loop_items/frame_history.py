"""One frame: which workers held it, how each attempt ended, and the rows that it read and gave."""

from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import CollectionForm
from noetl_contracts.errors import TRIES_MAX, ResultMalformed
from noetl_contracts.events import Event
from noetl_contracts.events.frame_events import (
    FrameAbandoned,
    FrameCommitted,
    FrameDispatched,
    FrameFailed,
    FrameStarted,
)
from noetl_contracts.events.loop_events import LoopStarted, StageOpened
from noetl_contracts.ids import ExecutionId, FrameId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.status import FrameStatus
from noetl_planner.api.http import problems
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import (
    execution_lookup,
    fold_slices,
    payload_reader,
    replay_slices,
)
from noetl_planner.api.lookup.views import Row
from noetl_planner.api.loop_items import claimed_reader
from noetl_planner.api.loop_items.loop_record import CollectionReader
from noetl_planner.api.pools import frame_waits
from noetl_planner.api.pools.frame_waits import FrameWait
from noetl_planner.domain.decision import idempotency_keys
from noetl_planner.loops.units import list_row_results
from noetl_playbook.templates import output_forms
from noetl_playbook.views import error_view, result_envelope
from noetl_storage.arrow import result_values

Version = Annotated[int | None, QueryParameter(ge=1, le=problems.NUMBER_MAX)]
ROWS_MAX = 1_000
NOT_ENDED_NOTE = "the frame has not ended: it gave nothing yet"
NOT_KEPT_NOTE = "the loop of this frame keeps no results"


class FrameSide(StrEnum):
    """The rows that a frame was given, or what it made of them."""

    INPUT = "input"
    OUTPUT = "output"


class FrameOutcome(StrEnum):
    """How a worker's hold of a frame ended; an `abandoned` frame runs again."""

    HELD = "held"
    COMPLETED = "completed"
    FAILED = "failed"
    ABANDONED = "abandoned"
    CANCELLED = "cancelled"


class FrameLease(Struct, frozen=True, kw_only=True):
    """One attempt of a frame: who held it, when it was handed out, and how the hold ended."""

    attempt: int
    worker_id: str | None
    dispatched_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    outcome: FrameOutcome
    reason: str | None = None
    error: Any = None


class FrameHistory(Struct, frozen=True, kw_only=True):
    """The leases of a frame, the first one first; `more_leases`: earlier ones are left out.

    `first_row` is the place of its first row in the loop's collection; null for claimed rows.
    `waiting` says why it waits; null while it runs, after its end, and of what is past.
    """

    execution_id: str
    frame_id: str
    stage_id: str
    status: str
    row_count: int | None
    first_row: int | None
    leases: list[FrameLease]
    more_leases: bool
    waiting: FrameWait | None = None


class FrameRowPage(Struct, frozen=True, kw_only=True):
    """A window of a frame's rows; `note` says why there are none."""

    execution_id: str
    frame_id: str
    side: FrameSide
    rows: list[Any]
    total: int
    offset: int
    has_next: bool
    note: str | None = None


class _FrameEvents:
    """Finds the events of one frame by their keys, those up to a version if one is given."""

    def __init__(self, services: ApiServices, row: Row, version: int | None) -> None:
        self._ledger = services.history.ledger
        self._execution_id = ExecutionId(row["execution_id"])
        self._frame_id = FrameId(row["frame_id"])
        self._version = version

    async def find_event(self, name: str) -> Envelope | None:
        """Return the event of the frame that its key names so, or None."""
        key = f"frame/{self._frame_id}/{name}"
        envelope = await self._ledger.find_by_key(self._execution_id, key)
        is_later = (
            envelope is not None
            and self._version is not None
            and envelope.stream_version > self._version
        )
        return None if is_later else envelope

    async def find_dispatch(self, attempt: int) -> FrameDispatched | None:
        """Return how an attempt was handed out, or None."""
        envelope = await self.find_event(f"dispatched/{attempt}")
        event = None if envelope is None else envelope.event
        return event if isinstance(event, FrameDispatched) else None

    async def find_stage_loop(self, stage_id: str) -> LoopStarted | None:
        """Return the beginning of the loop whose stage it is, or None."""
        opened = await self._find_opened(stage_id)
        if opened is None:
            return None
        key = idempotency_keys.build_loop_started_key(opened.run_id)
        envelope = await self._ledger.find_by_key(self._execution_id, key)
        event = None if envelope is None else envelope.event
        return event if isinstance(event, LoopStarted) else None

    async def _find_opened(self, stage_id: str) -> StageOpened | None:
        envelope = await self._ledger.find_by_key(self._execution_id, f"stage/{stage_id}/opened")
        event = None if envelope is None else envelope.event
        return event if isinstance(event, StageOpened) else None


@get(
    "/executions/{execution_id:str}/frames/{frame_id:str}",
    tags=["executions"],
    responses=fold_slices.UNDER_WAY,
)
async def show_frame(
    services: Services,
    execution_id: FromPath[str],
    frame_id: FromPath[str],
    version: Version = None,
) -> FrameHistory:
    """Show which workers held a frame, and how each attempt ended: by a `version`, if given."""
    execution = await execution_lookup.get_execution_row(services, execution_id)
    row = await _get_frame_row(services, execution, frame_id, version)
    events = _FrameEvents(services, row, version)
    attempts = row["attempts"] or 0
    abandoned = await events.find_event(f"abandoned/{attempts}")
    first = max(1, attempts - TRIES_MAX + 1)
    dispatched = await events.find_dispatch(attempts)
    return FrameHistory(
        execution_id=row["execution_id"],
        frame_id=row["frame_id"],
        stage_id=row["stage_id"],
        status=row["status"],
        row_count=row["row_count"],
        first_row=None if dispatched is None else dispatched.start,
        leases=await _view_leases(events, row, range(first, attempts + 1)),
        more_leases=first > 1,
        waiting=None
        if version is not None
        else await frame_waits.explain_frame_wait(
            services, execution, row, last_end=None if abandoned is None else abandoned.event
        ),
    )


@get(
    "/executions/{execution_id:str}/frames/{frame_id:str}/rows",
    tags=["executions"],
    responses=fold_slices.UNDER_WAY,
)
async def list_frame_rows(
    services: Services,
    execution_id: FromPath[str],
    frame_id: FromPath[str],
    side: FromQuery[FrameSide] = FrameSide.INPUT,
    offset: Annotated[int, QueryParameter(ge=0, le=problems.NUMBER_MAX)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=ROWS_MAX)] = 100,
    version: Version = None,
) -> FrameRowPage:
    """List a window of the rows that a frame was given, or of what it had made of them."""
    execution = await execution_lookup.get_execution_row(services, execution_id)
    row = await _get_frame_row(services, execution, frame_id, version)
    events = _FrameEvents(services, row, version)
    window, note = slice(offset, offset + limit), None
    if side is FrameSide.INPUT:
        rows, total = await _read_input(services, events, row, window)
    else:
        results, note = await _read_output(services, events)
        rows, total = results[window], len(results)
    return FrameRowPage(
        execution_id=row["execution_id"],
        frame_id=row["frame_id"],
        side=side,
        rows=rows,
        total=total,
        offset=offset,
        has_next=offset + len(rows) < total,
        note=note,
    )


async def _get_frame_row(
    services: ApiServices, execution: Row, frame_id: str, version: int | None
) -> Row:
    """Return the row of a frame, as it was at a version if one is given; raises a 404."""
    checked_id = ExecutionId(execution["execution_id"])
    number = execution_lookup.check_number(frame_id, "a frame id")
    if version is None:
        row = await services.history.projections.find_frame(checked_id, number)
    else:
        past = (await replay_slices.fold_frames(services, checked_id, version)).get(number)
        row = None if past is None else codec.decode_json(past)
    if row is not None:
        return row
    then = "" if version is None else f" at version {version}"
    raise problems.build_not_found_error(
        f"execution {checked_id} has no frame {number}{then}",
        hint=f"GET /api/executions/{checked_id}/frames lists them",
    )


async def _view_leases(events: _FrameEvents, row: Row, attempts: range) -> list[FrameLease]:
    terminal = await events.find_event("terminal")
    return [await _view_lease(events, row, attempt, terminal) for attempt in attempts]


async def _view_lease(
    events: _FrameEvents, row: Row, attempt: int, terminal: Envelope | None
) -> FrameLease:
    dispatched = await events.find_event(f"dispatched/{attempt}")
    started = await events.find_event(f"started/{attempt}")
    end = await events.find_event(f"abandoned/{attempt}")
    if end is None and terminal is not None and _get_attempt(terminal.event) == attempt:
        end = terminal
    is_cancelled = attempt == row["attempts"] and row["status"] == FrameStatus.CANCELLED
    outcome, reason, error = _judge_end(None if end is None else end.event)
    found = [item.event for item in (started, end, dispatched) if item is not None]
    return FrameLease(
        attempt=attempt,
        worker_id=next((worker for event in found if (worker := _get_worker(event))), None),
        dispatched_at=None if dispatched is None else dispatched.event_time,
        started_at=None if started is None else started.event_time,
        ended_at=None if end is None else end.event_time,
        outcome=FrameOutcome.CANCELLED if end is None and is_cancelled else outcome,
        reason=reason,
        error=error,
    )


def _get_attempt(event: Event) -> int | None:
    return event.attempt if isinstance(event, FrameCommitted | FrameFailed) else None


def _get_worker(event: Event) -> str | None:
    match event:
        case FrameAbandoned(previous_worker=worker):
            return worker
        case (
            FrameStarted(worker_id=worker)
            | FrameDispatched(worker_id=worker)
            | FrameCommitted(worker_id=worker)
            | FrameFailed(worker_id=worker)
        ):
            return worker
        case _:
            return None


def _judge_end(event: Event | None) -> tuple[FrameOutcome, str | None, Any]:
    """Say how a hold ended, why, and with which error."""
    match event:
        case FrameCommitted():
            return FrameOutcome.COMPLETED, None, None
        case FrameFailed(error=error):
            return FrameOutcome.FAILED, None, error_view.show_error_summary(error)
        case FrameAbandoned(reason=reason, error=error):
            return FrameOutcome.ABANDONED, reason, error_view.show_error_summary(error)
        case _:
            return FrameOutcome.HELD, None, None


async def _read_input(
    services: ApiServices, events: _FrameEvents, row: Row, window: slice
) -> tuple[list[Any], int]:
    """Read rows that a frame was given, and how many there are; raises an `ApiError`."""
    dispatched = await events.find_dispatch(row["attempts"] or 0)
    if dispatched is None:
        raise problems.build_not_found_error(
            f"the history of execution {row['execution_id']} does not say what frame "
            f"{row['frame_id']} was given",
            hint="the events have left the ledger, or the frame was never handed out",
        )
    if dispatched.start is not None:
        return await _read_part(services, events, dispatched, window)
    claimed = await claimed_reader.find_claimed_rows(
        services, ExecutionId(row["execution_id"]), dispatched.frame_id
    )
    if claimed is None:
        raise problems.build_not_found_error(
            f"the record of frame {row['frame_id']} is not there any more",
            hint="retention has removed the rows of this run",
        )
    return claimed[window], len(claimed)


async def _read_part(
    services: ApiServices, events: _FrameEvents, dispatched: FrameDispatched, window: slice
) -> tuple[list[Any], int]:
    """Read a frame's part of its loop's collection; raises an `ApiError`."""
    started = await events.find_stage_loop(dispatched.stage_id)
    if started is None:
        raise problems.build_not_found_error(f"no loop has the stage {dispatched.stage_id}")
    taken = None if started.taken is None else started.taken.frames
    form = started.collection_form if taken is None else taken.rows_form
    # An item of a range is its place.
    reference = None if form is CollectionForm.RANGE else dispatched.rows_ref
    collection = CollectionReader(services, form=form, reference=reference)
    start = dispatched.start or 0
    places = range(start, start + dispatched.row_count)[window]
    values = [await collection.read_item(place) for place in places]
    return [output_forms.to_plain(value) for value in values], dispatched.row_count


async def _read_output(services: ApiServices, events: _FrameEvents) -> tuple[list[Any], str | None]:
    """Read what a frame gave, an entry a row, or say why there is nothing."""
    terminal = await events.find_event("terminal")
    event = None if terminal is None else terminal.event
    if not isinstance(event, FrameCommitted | FrameFailed):
        return [], NOT_ENDED_NOTE
    if event.result is None:
        return [], NOT_KEPT_NOTE
    loaded = await result_values.load_stored_result(
        partial(payload_reader.read_payload, services), event.result
    )
    plain = result_envelope.build_plain_result(
        event.result, result_envelope.make_payload_finder(loaded)
    )
    try:
        return list_row_results(plain), None
    except ResultMalformed:
        return [plain], None


ROUTES = [show_frame, list_frame_rows]
