"""The runs of an execution's steps: when, how they ended, and what their tasks did."""

from datetime import datetime
from typing import Annotated, Any

from litestar import get
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

from noetl_contracts.ids import ExecutionId
from noetl_contracts.status import RunStatus
from noetl_planner.api.http.problems import NUMBER_MAX
from noetl_planner.api.http.service_groups import HistoryStores
from noetl_planner.api.http.services import Services
from noetl_planner.api.lookup import execution_lookup, views
from noetl_planner.api.lookup.views import Row
from noetl_playbook.views import error_view
from noetl_storage.ports.history_ports import RunEventFilter, ShownEvent

RUNS_MAX = 1000
_PAGE_EVENTS = 1000

After = Annotated[int, QueryParameter(ge=0, le=NUMBER_MAX)]
Limit = Annotated[int, QueryParameter(ge=1, le=RUNS_MAX)]


class StepRunView(Struct, frozen=True, kw_only=True):
    """One run of a step; `tasks` is what each task did, once the run has ended.

    `tries` are attempts of its tasks that failed before the one that succeeded.

    `duration` is in seconds, of a run that goes on so far. Times are those of the events.
    """

    run_id: str
    step: str
    activation: int
    version: int
    came_from: str | None
    status: str
    started_at: datetime
    ended_at: datetime | None
    duration: float
    tasks: dict[str, Any]
    notes: list[str]
    error: Any
    tries: list[dict[str, Any]] = []


class StepRunList(Struct, frozen=True, kw_only=True):
    """Runs of steps as they began; ask again with `next_after` while `has_more`."""

    execution_id: str
    steps: list[StepRunView]
    next_after: int
    has_more: bool


@get("/executions/{execution_id:str}/steps", tags=["executions"])
async def list_step_runs(
    services: Services, execution_id: FromPath[str], after: After = 0, limit: Limit = 100
) -> StepRunList:
    """List the runs of an execution's steps, in the order in which they began."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    events = await find_run_events(services.history, row, after=after, runs_max=limit + 1)
    runs = view_runs(events, now=row.get("ended_at") or services.clock.now())
    page_runs = runs[:limit]
    return StepRunList(
        execution_id=row["execution_id"],
        steps=page_runs,
        next_after=page_runs[-1].version if page_runs else after,
        has_more=len(runs) > limit,
    )


def view_runs(events: list[ShownEvent], *, now: datetime) -> list[StepRunView]:
    """Bring together what began and what ended each run."""
    events_by_run: dict[str, list[ShownEvent]] = {}
    for event in events:
        events_by_run.setdefault(event.context["run_id"], []).append(event)
    return [_view_run(of_run, now) for of_run in events_by_run.values()]


def _view_run(events: list[ShownEvent], now: datetime) -> StepRunView:
    entered, last = events[0], events[-1]
    exited = last if "status" in last.context else None
    ended_at = None if exited is None else exited.event_time
    context = {} if exited is None else exited.context
    errors = [event.error or event.context.get("failure") for event in events]
    return StepRunView(
        run_id=entered.context["run_id"],
        step=entered.context["step"],
        activation=entered.context["activation"],
        version=entered.version,
        came_from=entered.context.get("came_from"),
        status=context.get("status", str(RunStatus.RUNNING)),
        started_at=entered.event_time,
        ended_at=ended_at,
        duration=round(max(0.0, ((ended_at or now) - entered.event_time).total_seconds()), 3),
        tasks=context.get("tasks", {}),
        notes=context.get("notes", []),
        error=error_view.show_error_summary(
            next((error for error in reversed(errors) if error), None)
        ),
        tries=[failed for shown_event in events for failed in shown_event.context.get("tries", [])],
    )


async def find_run_events(
    history: HistoryStores, row: Row, *, after: int, runs_max: int
) -> list[ShownEvent]:
    """Ask the ledger's index; a history that has left it is read from its archive."""
    execution_id = ExecutionId(row["execution_id"])
    shown_events = await history.pages.find_run_events(
        execution_id, after_version=after, runs_max=runs_max
    )
    if shown_events or not views.is_terminal(row):
        return shown_events
    chosen = RunEventFilter(runs_max=runs_max)
    while True:
        page = await history.ledger.read_events(
            execution_id, after_version=after, events_max=_PAGE_EVENTS
        )
        chosen.add_history(page)
        if len(page) < _PAGE_EVENTS:
            return chosen.found
        after = page[-1].stream_version


ROUTES = (list_step_runs,)
