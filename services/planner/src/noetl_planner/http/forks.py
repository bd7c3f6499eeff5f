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
from noetl_contracts.events.execution import Source
from noetl_contracts.facts import Inherited
from noetl_planner.http import (
    catalog_entries,
    cuts,
    finding,
    flows,
    input_checks,
    replaying,
    reruns,
    submission,
    views,
)
from noetl_planner.http.cuts import Cut
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices, Services
from noetl_planner.http.submission import PRODUCER
from noetl_playbook.model import Playbook
from noetl_playbook.plan import Graph
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
    return await begin(services, execution_id, data or ForkBody(), idempotency_key)


async def begin(
    services: ApiServices, text: str, body: ForkBody, key: str | None
) -> views.Accepted:
    """Keep a request to go on from a past position; the answer is durable."""
    head = await cuts.get_history(
        services,
        finding.checked_id(text),
        tenant_id=services.tenant_id,
        organization_id=services.organization_id,
    )
    cut = Cut(event_id=body.as_of_event_id, position=body.as_of_position, time=body.as_of_time)
    until = await cuts.version_of(services, head, cut)
    replay = await replaying.replay(services, head.execution_id, until=until, has_rows=False)
    before = replay.state
    # A draft is no version that another could follow.
    is_pinned = body.pinned or before.catalog_version < 0
    entry = await catalog_entries.find_playbook(
        services, before.path, before.catalog_version if is_pinned else None
    )
    submission.check_requirements(services, entry)
    input_checks.check_inputs(entry, body.workload or {})
    graph = Graph.of(codec.convert(entry.model, Playbook))
    step, came_from = _step(before, graph, body.from_step)
    return await submission.ask(
        services,
        entry,
        body.workload or {},
        asked_by=PRODUCER,
        key=key,
        is_pinned=is_pinned,
        flow=flows.flow_of(before),
        rerun=await reruns.carried(
            services,
            Source(
                execution_id=before.execution_id,
                version=until,
                step=step,
                files=reruns.file_sources(before, _activation(before, step)),
            ),
            came_from=came_from,
            inherited=Inherited(
                workload=await reruns.workload_of(services, before),
                ctx=before.ctx,
                steps=reruns.ended_steps(before, but=step),
            ),
        ),
    )


def _activation(before: ExecutionState, step: str) -> int | None:
    """Return the number of the run of a step that was live, None where none was."""
    numbers = [run.activation for run in before.runs.values() if run.step == step]
    return min(numbers, default=None)


def _step(before: ExecutionState, graph: Graph, wanted: str | None) -> tuple[str, str | None]:
    """Choose the step to begin with, and where its token comes from; raises a 422."""
    live = {run.step: run.came_from for run in before.runs.values()} | before.tokens
    if wanted is not None:
        return reruns.known_step(graph, wanted), live.get(wanted)
    if len(live) == 1:
        return next(iter(live.items()))
    if not live:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="nothing_live",
            detail=f"no step was live at position {before.version}",
            hint="choose an earlier position, or name the step: from_step, or --from",
        )
    raise ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        code="several_live",
        detail=f"{len(live)} steps were live at position {before.version}: "
        f"{', '.join(sorted(live))}",
        hint="name the one to go on with, or a step before them: from_step, or --from",
    )


ROUTES = [fork]
