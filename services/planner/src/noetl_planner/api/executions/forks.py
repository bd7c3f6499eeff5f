"""Forks: a new execution that goes on from any past position of another, whose history stays.

The new one takes over `ctx` and the results of all steps that had ended at the position. The step
that was live there begins anew: what it had done of its work by then is not taken over.
"""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

from litestar import post
from litestar.params import FromPath, HeaderParameter, JSONBody
from litestar.status_codes import HTTP_202_ACCEPTED
from msgspec import Meta, Struct

from noetl_contracts import codec
from noetl_contracts.events.execution_events import RerunSource
from noetl_contracts.requests.facts import InheritedState
from noetl_planner.api.catalog import catalog_entries, input_checks
from noetl_planner.api.executions import reruns, second_persons, start_requests
from noetl_planner.api.executions.start_requests import PRODUCER
from noetl_planner.api.history import cuts
from noetl_planner.api.history.cuts import HistoryCut
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup, replay_slices, views
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.plan import WorkflowGraph
from noetl_replay.state import ExecutionState


class ForkBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From which position (default: the latest), which step if several were live, which inputs."""

    as_of_event_id: str | None = None
    as_of_position: int | None = None
    as_of_time: datetime | None = None
    from_step: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    pinned: bool = True
    workload: dict[str, Any] | None = None


@post("/executions/{execution_id:str}/fork", status_code=HTTP_202_ACCEPTED, tags=["executions"])
async def fork(
    services: Services,
    execution_id: FromPath[str],
    data: JSONBody[ForkBody | None] = None,
    idempotency_key: Annotated[
        str | None, HeaderParameter(name="Idempotency-Key", min_length=1, max_length=200)
    ] = None,
) -> views.Accepted:
    """Begin a new execution with the state that this one had at a position."""
    return await begin_fork(services, execution_id, data or ForkBody(), idempotency_key)


async def begin_fork(
    services: ApiServices, text: str, body: ForkBody, key: str | None
) -> views.Accepted:
    """Keep a request to go on from a past position; the answer is durable."""
    head = await cuts.get_history_head(
        services,
        execution_lookup.check_execution_id(text),
        tenant_id=services.tenant_id,
        organization_id=services.organization_id,
    )
    cut = HistoryCut(
        event_id=body.as_of_event_id, position=body.as_of_position, time=body.as_of_time
    )
    until = await cuts.get_version_at_cut(services.history, head, cut)
    before = await replay_slices.fold_state(services, head.execution_id, until=until)
    # A draft is no version that another could follow.
    is_pinned = body.pinned or before.catalog_version < 0
    entry = await catalog_entries.get_playbook_entry(
        services, before.path, before.catalog_version if is_pinned else None
    )
    start_requests.check_requirements(services, entry)
    input_checks.check_inputs(entry, body.workload or {})
    inherited_inputs = await reruns.read_workload(services, before)
    input_checks.check_required_inputs(entry, {**inherited_inputs, **(body.workload or {})})
    graph = WorkflowGraph.from_playbook(codec.convert_value(entry.model, Playbook))
    step, came_from = _choose_step(before, graph, body.from_step)
    second_persons.check_approvals(
        entry.model,
        graph,
        before,
        step,
        is_changed=bool(body.workload) or entry.version != before.catalog_version,
    )
    return await start_requests.request_execution(
        services,
        entry,
        body.workload or {},
        asked_by=PRODUCER,
        key=key,
        is_pinned=is_pinned,
        flow=execution_lookup.get_correlation_id(before),
        rerun=await reruns.build_rerun(
            services,
            RerunSource(
                execution_id=before.execution_id,
                version=until,
                step=step,
                files=reruns.list_file_sources(before, _find_live_activation(before, step)),
            ),
            came_from=came_from,
            inherited=InheritedState(
                workload=inherited_inputs,
                ctx=before.ctx,
                steps=reruns.list_ended_steps(before, but=step),
            ),
            backfill=before.backfill,
        ),
    )


def _find_live_activation(before: ExecutionState, step: str) -> int | None:
    """Return the number of the run of a step that was live, None where none was."""
    numbers = [run.activation for run in before.runs.values() if run.step == step]
    return min(numbers, default=None)


def _choose_step(
    before: ExecutionState, graph: WorkflowGraph, from_step: str | None
) -> tuple[str, str | None]:
    """Choose the step to begin with, and where its token comes from; raises a 422."""
    live_steps = {run.step: run.came_from for run in before.runs.values()} | before.tokens
    if from_step is not None:
        return reruns.check_known_step(graph, from_step), live_steps.get(from_step)
    if len(live_steps) == 1:
        return next(iter(live_steps.items()))
    if not live_steps:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="nothing_live",
            detail=f"no step was live at position {before.version}",
            hint="choose an earlier position, or name the step: from_step, or --from",
        )
    raise ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        code="several_live",
        detail=f"{len(live_steps)} steps were live at position {before.version}: "
        f"{', '.join(sorted(live_steps))}",
        hint="name the one to go on with, or a step before them: from_step, or --from",
    )


ROUTES = [fork]
