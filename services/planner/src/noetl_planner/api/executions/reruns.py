"""Reruns: a new execution that begins at a step of an earlier one (language reference, 18).

What the new one takes over is folded from the earlier one's history, up to the latest entry of the
step: `ctx`, and the results of the steps that had ended. Steps of other branches that ended later
and that the step cannot lead to are taken over as well.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Annotated, Any

from litestar import post
from litestar.params import FromPath, HeaderParameter, JSONBody
from litestar.status_codes import HTTP_202_ACCEPTED
from msgspec import Meta, Struct, UnsetType, structs

from noetl_contracts import codec, spelling
from noetl_contracts.commands.state_values import IncrementRange
from noetl_contracts.events.execution_events import InheritedStep, RerunSource
from noetl_contracts.events.step_events import StepEnter
from noetl_contracts.execution_files import FileSource
from noetl_contracts.ids import ExecutionId
from noetl_contracts.json_values import DEPTH_MAX, is_nested_deeper
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_contracts.requests.facts import InheritedState, Rerun
from noetl_contracts.status import RunStatus
from noetl_planner.api.catalog import catalog_entries, input_checks
from noetl_planner.api.executions import second_persons, start_requests
from noetl_planner.api.executions.start_requests import INLINE_BYTES_MAX, PRODUCER
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.service_groups import HistoryStores
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import (
    execution_lookup,
    payload_reader,
    views,
)
from noetl_planner.api.loop_items import item_takeover
from noetl_planner.api.loop_items.item_takeover import take_items
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.plan import WorkflowGraph
from noetl_replay.fold import fold_event
from noetl_replay.state import ExecutionState, StepState, build_empty_state, take_changes

_ENDED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.SKIPPED})


class RerunBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From which step (default: the one that failed), in which version, with which other inputs.

    With `failed` the step is a loop, and only its items run that did not complete.
    """

    from_step: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    pinned: bool = True
    workload: dict[str, Any] | None = None
    failed: bool = False


class FailedRerun(views.Accepted, frozen=True, kw_only=True):
    """A request to run so many items of a loop; what completed is taken over."""

    step: str
    items_to_run: int
    units_taken: int


@post("/executions/{execution_id:str}/rerun", status_code=HTTP_202_ACCEPTED, tags=["executions"])
async def rerun(
    services: Services,
    execution_id: FromPath[str],
    data: JSONBody[RerunBody | None] = None,
    idempotency_key: Annotated[
        str | None, HeaderParameter(name="Idempotency-Key", min_length=1, max_length=200)
    ] = None,
) -> views.Accepted | FailedRerun:
    """Run an execution again from a step on, or the failed items of a loop, as a new execution."""
    return await begin_rerun(services, execution_id, data or RerunBody(), idempotency_key)


async def begin_rerun(
    services: ApiServices, text: str, body: RerunBody, key: str | None
) -> views.Accepted | FailedRerun:
    """Keep a request to repeat an execution from a step on; the answer is durable."""
    row = await execution_lookup.get_execution_row(services, text)
    ended = await execution_lookup.fold_execution(services, ExecutionId(row["execution_id"]))
    is_pinned = body.pinned or ended.catalog_version < 0
    version = ended.catalog_version if is_pinned and ended.version else None
    entry = await catalog_entries.get_playbook_entry(services, row["path"], version)
    start_requests.check_requirements(services, entry)
    input_checks.check_inputs(entry, body.workload or {})
    inherited_inputs = await read_workload(services, ended)
    input_checks.check_required_inputs(entry, {**inherited_inputs, **(body.workload or {})})
    playbook = codec.convert_value(entry.model, Playbook)
    graph = WorkflowGraph.from_playbook(playbook)
    taking = None
    if body.failed:
        if body.from_step is not None:
            check_known_step(graph, body.from_step)
        record = await item_takeover.find_failed_loop(
            services, row, ended, playbook, graph, from_step=body.from_step
        )
        taking = await take_items(services, record)
    step = taking.step if taking is not None else _choose_step(ended, graph, body.from_step)
    second_persons.check_approvals(
        entry.model,
        graph,
        ended,
        step,
        is_changed=bool(body.workload) or entry.version != ended.catalog_version,
    )
    before, entered = await _fold_before_step(services.history, ended, step)
    activation = entered.activation if entered is not None else None
    if taking is not None and activation is not None:
        # The items that completed have changed files, and nothing after them.
        activation += 1
    accepted = await start_requests.request_execution(
        services,
        entry,
        body.workload or {},
        asked_by=PRODUCER,
        key=key,
        is_pinned=is_pinned,
        flow=execution_lookup.get_correlation_id(ended),
        rerun=await build_rerun(
            services,
            RerunSource(
                execution_id=ended.execution_id,
                version=before.version,
                step=step,
                files=list_file_sources(ended, activation),
                items=None if taking is None else taking.items,
            ),
            came_from=entered.came_from if entered is not None else None,
            inherited=InheritedState(
                workload=inherited_inputs,
                ctx=before.ctx if taking is None else {**before.ctx, **taking.patch},
                steps=_list_inherited_steps(before, ended, graph, step),
            ),
            backfill=ended.backfill,
        ),
    )
    if taking is None:
        return accepted
    return FailedRerun(
        **structs.asdict(accepted),
        step=step,
        items_to_run=taking.items.todo,
        units_taken=taking.items.completed,
    )


def check_known_step(graph: WorkflowGraph, step: str) -> str:
    """Admit a step that somebody named; raises a 422 that says what was probably meant."""
    if step in graph.steps:
        return step
    raise ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        code="unknown_step",
        detail=f"this version of the playbook has no step {step!r}",
        hint=spelling.suggest_or_list(step, list(graph.steps), label="its steps are"),
    )


def _choose_step(ended: ExecutionState, graph: WorkflowGraph, from_step: str | None) -> str:
    """Choose the step to begin with; raises a 422."""
    if from_step is not None:
        return check_known_step(graph, from_step)
    if ended.failure is None:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="no_failed_step",
            detail=f"execution {ended.execution_id} has no failed step",
            hint="name the step to begin with: from_step, or --from",
        )
    # What failed before the first step, such as its inputs, begins at the entry.
    failed = ended.failed_step
    return failed if failed is not None and failed in graph.steps else graph.entry


async def _fold_before_step(
    history: HistoryStores, ended: ExecutionState, step: str
) -> tuple[ExecutionState, StepEnter | None]:
    """Fold up to the latest entry of a step; up to the end when it was never entered."""
    latest = ended.steps.get(step)
    run_id = latest.run_id if latest is not None else None
    state = build_empty_state(ended.execution_id, ended.tenant_id, ended.organization_id)
    while state.version < ended.version:
        page = await history.ledger.read_events(
            ended.execution_id,
            after_version=state.version,
            events_max=execution_lookup.PAGE_EVENTS,
        )
        for envelope in page[: ended.version - state.version]:
            if isinstance(envelope.event, StepEnter) and envelope.event.run_id == run_id:
                return state, envelope.event
            state = fold_event(state, envelope)
            take_changes(state)
    return state, None


def _list_inherited_steps(
    before: ExecutionState, ended: ExecutionState, graph: WorkflowGraph, step: str
) -> list[InheritedStep]:
    """List what is remembered of the steps that are not to run again."""
    steps = {run.step for run in before.runs.values()}
    downstream = graph.list_reachable(step) | {step}
    inherited_steps = {
        name: step_state for name, step_state in before.steps.items() if name not in steps
    }
    inherited_steps |= {
        name: item
        for name, item in ended.steps.items()
        if name in graph.steps and name not in downstream and item.status in _ENDED
    }
    return _build_inherited_steps(inherited_steps.values())


def list_ended_steps(state: ExecutionState, *, but: str) -> list[InheritedStep]:
    """List what a state remembers of the steps that had ended, without one."""
    steps = {run.step for run in state.runs.values()} | {but}
    return _build_inherited_steps(
        step_state for name, step_state in state.steps.items() if name not in steps
    )


def _build_inherited_steps(steps: Iterable[StepState]) -> list[InheritedStep]:
    return [
        InheritedStep(
            step=step.step,
            run_id=step.run_id,
            status=step.status,
            result=step.result,
            error=step.error,
        )
        for step in steps
        if step.run_id is not None and step.status in _ENDED
    ]


def list_file_sources(state: ExecutionState, before_activation: int | None) -> list[FileSource]:
    """List the executions whose files a new one takes over, the oldest first."""
    earlier = state.source.files if state.source is not None else []
    latest = FileSource(execution_id=state.execution_id, before_activation=before_activation)
    return [*earlier, latest]


async def read_workload(services: ApiServices, ended: ExecutionState) -> dict[str, Any]:
    """Return the inputs of an execution, read from the payload that holds large ones."""
    if ended.workload_ref is None:
        return ended.workload
    workload: dict[str, Any] = await payload_reader.read_payload(services, ended.workload_ref)
    return workload


async def build_rerun(
    services: ApiServices,
    source: RerunSource,
    *,
    came_from: str | None,
    inherited: InheritedState,
    backfill: IncrementRange | UnsetType,
) -> Rerun:
    """Refer to what is large, or deeply nested, instead of sending it."""
    data = codec.encode_canonical(inherited)
    if len(data) <= INLINE_BYTES_MAX and not is_nested_deeper(
        codec.to_builtins(inherited), DEPTH_MAX
    ):
        return Rerun(source=source, came_from=came_from, inherited=inherited, backfill=backfill)
    reference = await services.payloads.put_payload(
        data, media_type=JSON_MEDIA_TYPE, **services.tenant_scope
    )
    return Rerun(source=source, came_from=came_from, inherited_ref=reference, backfill=backfill)


ROUTES = [rerun]
