"""Which loop of an execution a rerun of failed items begins with."""

from http import HTTPStatus

from noetl_planner.domain import failed_items
from noetl_planner.domain.failed_items import LoopOutcome, NoChoice
from noetl_planner.http.loop_items import loop_record
from noetl_planner.http.loop_items.loop_record import LoopRecord
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices
from noetl_planner.http.views import Row
from noetl_playbook.model import Playbook
from noetl_playbook.plan import Graph, steps_by_name
from noetl_replay.state import ExecutionState


async def find_failed_loop(
    services: ApiServices,
    row: Row,
    ended: ExecutionState,
    playbook: Playbook,
    graph: Graph,
    *,
    wanted: str | None,
) -> LoopRecord:
    """Return the loop whose items run again; raises a 409 or a 422 where there is none."""
    if not ended.is_terminal():
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="execution_running",
            detail=f"execution {ended.execution_id} is {row['status']}: which items did not "
            "complete is known when it has ended",
            hint="wait for its end, or cancel it (noetl cancel ID)",
        )
    steps = steps_by_name(playbook)
    names = [name for name, step in steps.items() if step.loop is not None]
    records = await _list_records(services, ended, names)
    try:
        chosen = failed_items.choose_loop([outcome for outcome, _ in records], graph, wanted=wanted)
        failed_items.check_definition(chosen, steps[chosen.step])
    except NoChoice as failure:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code=failure.code,
            detail=f"execution {ended.execution_id}: {failure.detail}",
            hint=failure.hint,
        ) from failure
    return next(record for outcome, record in records if outcome is chosen)


async def _list_records(
    services: ApiServices, ended: ExecutionState, names: list[str]
) -> list[tuple[LoopOutcome, LoopRecord]]:
    """List the latest epochs of loops that began in this execution."""
    found: list[tuple[LoopOutcome, LoopRecord]] = []
    for name in names:
        if name not in ended.steps:
            continue
        try:
            record = await loop_record.find_loop(services, ended, name)
        except ApiError:
            # It was taken over from an execution before, or did not get to begin.
            continue
        found.append((await _outcome(services, record), record))
    return found


async def _outcome(services: ApiServices, record: LoopRecord) -> LoopOutcome:
    counts = await loop_record.count_units(services, record)
    return LoopOutcome(
        step=record.started.step,
        began_at=record.version,
        total=counts.get("total", record.started.total or 0),
        completed=counts.get("completed", 0),
        failed=counts.get("failed", 0),
        mode=record.started.mode,
        is_framed=record.is_framed,
        has_cursor=record.has_cursor,
        is_cut_inside=record.is_cut_inside,
    )
