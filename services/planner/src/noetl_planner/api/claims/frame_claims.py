"""The claim API for workers in other languages: frames of a stage."""

from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec
from litestar import post
from litestar.params import FromPath, JSONBody
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_contracts.ids import CommandId, ExecutionId, FrameId, StageId, WorkerId
from noetl_contracts.json_values import to_json_value
from noetl_contracts.ledger.records import IssuedCommand
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests.facts import FrameClosed
from noetl_planner.api.claims import claim_search, claims, execution_watch, leases, reports
from noetl_planner.api.claims.claim_search import Asker, Claim
from noetl_planner.api.claims.claims import Heard, Held, Mistake
from noetl_planner.api.claims.execution_watch import ExecutionWatch
from noetl_planner.api.claims.leases import Identity, Lease
from noetl_planner.api.claims.reports import Verdict
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.service_groups import HistoryStores
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup
from noetl_replay.state import ExecutionState, FrameState

REDUCE = "reduce"
# All claims of frames share the room of this one name: claims of invented stages get no more.
STAGES = "stages"
Count = Annotated[int, Meta(ge=0, le=leases.NUMBER_MAX)]
Amount = Annotated[int, Meta(ge=-leases.NUMBER_MAX, le=leases.NUMBER_MAX)] | float
MetricName = Annotated[str, Meta(min_length=1, max_length=80)]
Metrics = Annotated[dict[MetricName, Amount], Meta(max_length=64)]


class StageAsker(Asker, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who asks for a frame; with the execution the answer says how the stage stands."""

    execution_id: Identity | None = None


class ClaimedFrame(Struct, frozen=True, kw_only=True):
    """A frame, or nothing: ask again unless the stage is over."""

    claim: Claim | None
    stage_status: str | None


class HeldFrame(Held, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lease that a claim gave."""

    command_id: Identity


class Commit(HeldFrame, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a frame ended.

    `output` is a list with one result a row where the frame runs once a row, else the result of
    the body. `rows_left` were not begun: they become a frame of their own.
    """

    status: Literal["COMMITTED", "FAILED"]
    output: Any = None
    rows_failed: Count | None = None
    rows_left: Count = 0
    error: Mistake | None = None
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    metrics: Metrics = msgspec.field(default_factory=dict)


@post("/stages/{stage_id:str}/frames/claim", status_code=HTTP_200_OK, tags=["claims"])
async def claim(
    services: Services, stage_id: FromPath[str], data: JSONBody[StageAsker]
) -> ClaimedFrame:
    """Take a frame of a stage; answers `null` when none waits."""
    stage = execution_lookup.check_number(stage_id, "a stage id")

    async def list_waiting() -> list[IssuedCommand]:
        return await services.history.projections.list_issued(
            **services.tenant_scope, stage_id=stage, commands_max=claim_search.CANDIDATES_MAX
        )

    command = await claim_search.claim_command(services, data, list_waiting, place=STAGES)
    return ClaimedFrame(claim=command, stage_status=await _find_stage_status(services, stage, data))


@post("/frames/{frame_id:str}/heartbeat", status_code=HTTP_200_OK, tags=["claims"])
async def beat(services: Services, frame_id: FromPath[str], data: JSONBody[HeldFrame]) -> Heard:
    """Say that work goes on; the lease begins anew."""
    watch = await execution_watch.open_watch(services, data.execution_id)
    lease = data.to_lease(services, claims.check_command_id(data.command_id))
    frame = execution_lookup.check_number(frame_id, "a frame id")
    conflict = leases.find_frame_conflict(watch.state, lease, frame, services.pools.by_http)
    if conflict is not None:
        raise await _add_frame_end(services.history, conflict, lease, frame)
    return await claims.record_heartbeat(services, watch, lease)


@post("/frames/{frame_id:str}/commit", status_code=HTTP_200_OK, tags=["claims"])
async def commit(services: Services, frame_id: FromPath[str], data: JSONBody[Commit]) -> Verdict:
    """End a frame; the answer says what the planner made of it."""
    watch = await execution_watch.open_watch(services, data.execution_id)
    lease = data.to_lease(services, claims.check_command_id(data.command_id))
    frame = execution_lookup.check_number(frame_id, "a frame id")
    pools = services.pools.by_http
    is_ours = leases.find_frame_conflict(watch.state, lease, frame, pools) is None
    if is_ours:
        fact = await _build_close_fact(services, watch, lease, frame, data)
    else:
        fact = _build_late_fact(watch.state, lease, frame)
    try:
        return await reports.settle_frame(watch, lease, frame, fact, pools=pools)
    except ApiError as conflict:
        raise await _add_frame_end(services.history, conflict, lease, frame) from conflict


async def _build_close_fact(
    services: ApiServices, watch: ExecutionWatch, lease: Lease, frame_id: str, data: Commit
) -> FrameClosed:
    state = watch.state
    opened = state.frames[FrameId(frame_id)]
    run = state.runs[state.commands[CommandId(lease.command_id)].run_id]
    rows = opened.row_count - data.rows_left
    mode = run.loop.mode if run.loop is not None else ""
    may_leave = mode not in {REDUCE, "fanout"}
    if rows < 0 or (data.rows_left and not may_leave):
        raise problems.build_bad_request_error(
            f"rows_left is {data.rows_left}: frame {frame_id} has {opened.row_count} rows"
            + ("" if may_leave else ", and a shard is run as a whole"),
        )
    problems.check_depth(data.set, "set")
    if (data.status == "FAILED") != (data.error is not None):
        raise problems.build_bad_request_error(
            "a frame that FAILED has an error, and only such a frame"
        )
    failed = (rows or 1) if data.rows_failed is None else data.rows_failed
    return FrameClosed(
        command_id=CommandId(lease.command_id),
        attempt=lease.attempt,
        worker_id=WorkerId(lease.worker_id),
        stage_id=opened.stage_id,
        frame_id=opened.frame_id,
        slot=opened.slot,
        frame_index=opened.frame_index,
        row_count=rows,
        rows_failed=0 if data.error is None else max(1, failed),
        error=None if data.error is None else data.error.to_error(opened.step),
        result=await _keep_frame_output(services, watch, opened, data, rows=rows),
        patch=to_json_value(data.set),
        metrics=dict(data.metrics),
        parent_frame_id=opened.parent_frame_id,
        rows_left=data.rows_left,
        key=str(opened.slot) if mode == "fanout" else None,
    )


async def _keep_frame_output(
    services: ApiServices, watch: ExecutionWatch, opened: FrameState, data: Commit, *, rows: int
) -> ResultEnvelope | None:
    """Keep what the body gave, in the form in which the loop gathers it."""
    program = await services.playbooks.programs.get_begun_program(watch.state)
    step = program.steps[opened.step]
    if step.loop is None:
        task = step.tool[-1].name
        return await reports.keep_pipeline_result(services, data.output, task=task)
    if step.loop.spec.collect != "all":
        return None
    policy = watch.state.stages[opened.stage_id].frame_policy
    if policy.get("process") == "frame":
        return await reports.keep_row_results(services, [data.output])
    if data.error is not None and data.output is None:
        return await reports.keep_row_results(services, [None] * rows)
    if not isinstance(data.output, list) or len(data.output) != rows:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="output_does_not_fit",
            detail=f"output is a list of one result for each of the {rows} rows",
            hint="send them in the order of the claim's rows; null where a row has none",
        )
    return await reports.keep_row_results(services, data.output)


def _build_late_fact(state: ExecutionState, lease: Lease, frame_id: str) -> FrameClosed:
    """Tell of a commit that comes too late, so that its refusal is recorded."""
    opened = state.frames.get(FrameId(frame_id))
    return FrameClosed(
        command_id=CommandId(lease.command_id),
        attempt=lease.attempt,
        worker_id=WorkerId(lease.worker_id),
        stage_id=opened.stage_id if opened is not None else StageId("0"),
        frame_id=FrameId(frame_id),
        slot=opened.slot if opened is not None else 0,
        frame_index=opened.frame_index if opened is not None else 0,
        row_count=0,
    )


async def _add_frame_end(
    history: HistoryStores, conflict: ApiError, lease: Lease, frame_id: str
) -> ApiError:
    """Add to a conflict which event ended the frame, when a projector has seen it."""
    row = await history.projections.find_frame(ExecutionId(lease.execution_id), frame_id)
    if row is not None:
        conflict.extra["terminal_event_id"] = row.get("terminal_event_id")
        conflict.extra["frame_status"] = row["status"]
    return conflict


async def _find_stage_status(services: ApiServices, stage_id: str, asker: StageAsker) -> str | None:
    if asker.execution_id is None:
        return None
    row = await execution_lookup.get_execution_row(services, asker.execution_id)
    stages = await services.history.projections.list_rows("stage", ExecutionId(row["execution_id"]))
    return next((stage["status"] for stage in stages if stage["stage_id"] == stage_id), None)


ROUTES = [claim, beat, commit]
