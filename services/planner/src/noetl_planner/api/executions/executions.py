"""Executions: begin, look, cancel, hold."""

from datetime import datetime
from functools import partial
from typing import Annotated, Any

from litestar import Response, get, post
from litestar.openapi import ResponseSpec
from litestar.params import (
    FromPath,
    FromQuery,
    HeaderParameter,
    JSONBody,
    QueryParameter,
)
from litestar.status_codes import HTTP_200_OK, HTTP_202_ACCEPTED
from msgspec import Meta, Struct

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import CORRELATION_CHARACTERS_MAX, is_correlation
from noetl_contracts.status import ExecutionStatus
from noetl_planner.api.executions import control_requests, start_requests
from noetl_planner.api.executions.fast_path import PREFER_LENGTH_MAX, FastPath
from noetl_planner.api.executions.start_requests import KEY_LENGTH_MAX, ExecuteBody
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import AnyRequest
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import (
    event_search,
    execution_lookup,
    fold_slices,
    hidden_values,
    replay_slices,
    views,
)
from noetl_planner.api.lookup.views import EventView, Row, StageView, StatusView, Summary
from noetl_planner.api.pools import lost_work, pool_waits, store_waits

PAGE_MAX = 1000
FRAMES_MAX = 1000
# How many pages one request looks at for executions that its sender may see.
PAGES_MAX = 20

IdempotencyKey = Annotated[
    str | None, HeaderParameter(name="Idempotency-Key", min_length=1, max_length=KEY_LENGTH_MAX)
]
Prefer = Annotated[str | None, HeaderParameter(name="Prefer", max_length=PREFER_LENGTH_MAX)]
CorrelationId = Annotated[str | None, HeaderParameter(name="X-Correlation-ID")]
Limit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX)]
From = Annotated[int, QueryParameter(ge=0)]
Version = Annotated[int | None, QueryParameter(ge=1, le=problems.NUMBER_MAX)]


class CancelBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why to stop, and whether the children stop too."""

    reason: Annotated[str, Meta(max_length=1000)] | None = None
    cascade: bool = True


class PauseBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why to hold."""

    reason: Annotated[str, Meta(max_length=1000)] | None = None


class Pagination(Struct, frozen=True, kw_only=True):
    """Where a page stands among all."""

    page: int
    page_size: int
    total: int
    has_next: bool


class ExecutionPage(Struct, frozen=True, kw_only=True):
    """An execution and one page of its events; `dropped` says why there are none any more."""

    execution_id: str
    path: str
    version: int | None
    status: str
    parent_execution_id: str | None
    events: list[EventView]
    pagination: Pagination
    dropped: str | None = None


class EventPage(Struct, frozen=True, kw_only=True):
    """Events after a version; ask again with `next_after` while `has_more`."""

    execution_id: str
    events: list[EventView]
    next_after: int
    has_more: bool


class ExecutionList(Struct, frozen=True, kw_only=True):
    """Executions, newest first; ask again with `next_before` for older ones."""

    executions: list[Summary]
    next_before: str | None


class StageList(Struct, frozen=True, kw_only=True):
    """The stages of an execution."""

    execution_id: str
    stages: list[StageView]


class FrameList(Struct, frozen=True, kw_only=True):
    """The frames of an execution, a bounded window of them."""

    execution_id: str
    frames: list[dict[str, Any]]
    total: int


class _FrameKey(Struct, frozen=True, kw_only=True):
    """What frames are chosen by."""

    stage_id: str
    status: str


@post(
    ["/execute", "/executions"],
    status_code=HTTP_202_ACCEPTED,
    middleware=[FastPath],
    tags=["executions"],
    responses={
        HTTP_200_OK: ResponseSpec(
            views.Ended, description="The execution is over; the caller preferred to wait."
        )
    },
)
async def execute(
    services: Services,
    request: AnyRequest,
    data: JSONBody[ExecuteBody],
    idempotency_key: IdempotencyKey = None,
    prefer: Prefer = None,
    correlation_id: CorrelationId = None,
) -> Response[views.Accepted]:
    """Run a playbook: the answer is durable and comes before the first step.

    With `Prefer: wait=SECONDS` it comes with the end, if there is one within so many seconds.
    `X-Correlation-ID` names the flow that all events of the run, and of its children, belong to.
    """
    if correlation_id is not None and not is_correlation(correlation_id):
        raise problems.build_bad_request_error(
            "X-Correlation-ID is no name of a flow",
            hint=f"give 1 to {CORRELATION_CHARACTERS_MAX} printable characters",
        )
    answer = await start_requests.answer_start(
        services,
        data,
        key=idempotency_key,
        prefer=prefer,
        client=problems.get_client_address(request),
        scope=request.scope,
        correlation_id=correlation_id,
    )
    return Response(answer.content, status_code=answer.status, headers=answer.headers)


@get("/executions", tags=["executions"])
async def list_executions(
    services: Services,
    status: FromQuery[ExecutionStatus | None] = None,
    path: FromQuery[str | None] = None,
    before: FromQuery[str | None] = None,
    since: FromQuery[datetime | None] = None,
    limit: Limit = 50,
) -> ExecutionList:
    """List executions, newest first; `since`, a time with its zone, leaves out older ones."""
    if since is not None and since.tzinfo is None:
        raise problems.build_bad_request_error(
            f"since={since.isoformat()} has no time zone", hint=f"write {since.isoformat()}Z"
        )
    read_page = partial(
        services.history.projections.list_executions,
        **services.tenant_scope,
        status=None if status is None else str(status),
        path=None if path is None else path.strip("/"),
        since=since,
        executions_max=limit,
    )
    place = None if before is None else execution_lookup.check_execution_id(before)
    page_rows: list[Row] = []
    # Where roles hold for some folders, rows of others are left out: a page looks at more of them.
    for _ in range(PAGES_MAX):
        rows = await read_page(before=place)
        page_rows += [row for row in rows if services.covers_path(row["path"])]
        is_full = len(rows) == limit
        place = rows[-1]["execution_id"] if is_full else None
        if not is_full or len(page_rows) >= limit or not services.path_prefixes:
            break
    now = services.clock.now()
    if len(page_rows) > limit:
        page_rows, place = page_rows[:limit], page_rows[limit - 1]["execution_id"]
    return ExecutionList(
        executions=[views.view_summary(row, now=now) for row in page_rows], next_before=place
    )


@get("/executions/{execution_id:str}", tags=["executions"])
async def show_execution(
    services: Services,
    execution_id: FromPath[str],
    page: Annotated[int, QueryParameter(ge=1)] = 1,
    page_size: Limit = 100,
) -> ExecutionPage:
    """Show an execution and a page of its events."""
    skipped = (page - 1) * page_size
    checked_id, history_page, dropped = await execution_lookup.get_execution_page(
        services, execution_id, skipped=skipped, size=page_size
    )
    events = views.view_shown_events(history_page.events)
    return ExecutionPage(
        execution_id=checked_id,
        path=history_page.path,
        version=history_page.catalog_version,
        status=history_page.status,
        parent_execution_id=history_page.parent_execution_id,
        events=await hidden_values.show_events(services, checked_id, events),
        pagination=Pagination(
            page=page,
            page_size=page_size,
            total=history_page.version,
            has_next=skipped + page_size < history_page.version,
        ),
        dropped=dropped,
    )


@get("/executions/{execution_id:str}/status", tags=["executions"])
async def show_status(services: Services, execution_id: FromPath[str]) -> StatusView:
    """Show how an execution stands."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    checked_id = ExecutionId(row["execution_id"])
    is_over = views.is_terminal(row)
    if not await hidden_values.may_read_values(services, checked_id):
        row = {**row, "variables": {}}
    late = [] if is_over else await pool_waits.list_late_commands(services, checked_id)
    return views.view_status(
        row,
        stages=await services.history.projections.list_rows("stage", checked_id),
        loops=await services.history.projections.list_rows("loop", checked_id),
        waiting=await pool_waits.explain_waits(services, late),
        lost=[] if is_over else await lost_work.list_lost_work(services, checked_id, late),
        messages=[] if is_over else await views.list_awaited_messages(services, checked_id),
        store_waits=[] if is_over else store_waits.list_store_waits(services.shards, checked_id),
        now=services.clock.now(),
    )


@get("/executions/{execution_id:str}/events", tags=["executions"])
async def list_events(
    services: Services,
    execution_id: FromPath[str],
    after: From = 0,
    limit: Limit = 200,
    text: Annotated[str | None, QueryParameter(min_length=1, max_length=200)] = None,
    version: Version = None,
) -> EventPage:
    """List events after a version, in order; with `text` those whose type, step or status has it.

    A search looks at so many events for one answer, which may be empty while there are more. With
    a `version` those that had happened by it.
    """
    row = await execution_lookup.get_execution_row(services, execution_id)
    checked_id = ExecutionId(row["execution_id"])
    found = await event_search.find_events(
        services, checked_id, after=after, text=text, events_max=limit
    )
    head = await services.history.ledger.find_head(checked_id)
    end = 0 if head is None else min(head.version, version or head.version)
    return EventPage(
        execution_id=checked_id,
        events=[event for event in found.events if event.version <= end],
        next_after=min(found.last, max(after, end)),
        has_more=found.last < end,
    )


@get("/executions/{execution_id:str}/stages", tags=["executions"])
async def list_stages(services: Services, execution_id: FromPath[str]) -> StageList:
    """List the stages of an execution."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    checked_id = ExecutionId(row["execution_id"])
    stages = await services.history.projections.list_rows("stage", checked_id)
    return StageList(execution_id=checked_id, stages=[views.view_stage(stage) for stage in stages])


@get("/executions/{execution_id:str}/frames", tags=["executions"], responses=fold_slices.UNDER_WAY)
async def list_frames(
    services: Services,
    execution_id: FromPath[str],
    stage_id: FromQuery[str | None] = None,
    status: FromQuery[str | None] = None,
    offset: From = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=FRAMES_MAX)] = 200,
    version: Version = None,
) -> FrameList:
    """List a window of an execution's frames; with a `version` as they were at it."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    checked_id = ExecutionId(row["execution_id"])
    stage = None if stage_id is None else execution_lookup.check_number(stage_id, "a stage id")
    shown_status = None if status is None else status.upper()
    if version is not None:
        encoded_rows = await _fold_frames(services, checked_id, stage, shown_status, version)
        past = [codec.decode_json(row) for row in encoded_rows[offset : offset + limit]]
        return FrameList(execution_id=checked_id, frames=past, total=len(encoded_rows))
    frames, total = await services.history.projections.list_frames(
        checked_id, stage_id=stage, status=shown_status, offset=offset, frames_max=limit
    )
    return FrameList(execution_id=checked_id, frames=frames, total=total)


async def _fold_frames(
    services: ApiServices,
    execution_id: ExecutionId,
    stage_id: str | None,
    status: str | None,
    version: int,
) -> list[bytes]:
    """Return the encoded frames that there were at a version, in key order.

    Raises a 400 for a version to come, and a 413 where the frames take too much memory.
    """
    row_by_id = await replay_slices.fold_frames(services, execution_id, version)
    encoded_rows = [row_by_id[frame_id] for frame_id in sorted(row_by_id, key=int)]
    if stage_id is None and status is None:
        return encoded_rows
    keys = [codec.decode_as(data, _FrameKey) for data in encoded_rows]
    return [
        data
        for data, key in zip(encoded_rows, keys, strict=True)
        if stage_id in (None, key.stage_id) and status in (None, key.status)
    ]


@post("/executions/{execution_id:str}/cancel", status_code=HTTP_202_ACCEPTED, tags=["executions"])
async def cancel(
    services: Services,
    execution_id: FromPath[str],
    data: JSONBody[CancelBody | None] = None,
) -> views.ControlAnswer:
    """Stop an execution; what already ended stays as it is."""
    cancel_body = data or CancelBody()
    return await control_requests.request_cancel(
        services, execution_id, cancel_body.reason, cascade=cancel_body.cascade
    )


@post("/executions/{execution_id:str}/pause", status_code=HTTP_202_ACCEPTED, tags=["executions"])
async def pause(
    services: Services,
    execution_id: FromPath[str],
    data: JSONBody[PauseBody | None] = None,
) -> views.ControlAnswer:
    """Dispatch nothing more until it is resumed; what runs may finish."""
    return await control_requests.request_pause(
        services, execution_id, None if data is None else data.reason
    )


@post("/executions/{execution_id:str}/resume", status_code=HTTP_202_ACCEPTED, tags=["executions"])
async def resume(services: Services, execution_id: FromPath[str]) -> views.ControlAnswer:
    """Let a paused execution go on exactly where it was held."""
    return await control_requests.request_resume(services, execution_id)


ROUTES = [
    execute,
    list_executions,
    show_execution,
    show_status,
    list_events,
    list_stages,
    list_frames,
    cancel,
    pause,
    resume,
]
