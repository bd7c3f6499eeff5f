"""What checks of datasets have found: run after run of a playbook, and in one execution."""

from collections.abc import Iterator
from datetime import datetime
from http import HTTPStatus
from typing import Annotated

from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import MetricsByTask
from noetl_contracts.ids import ExecutionId
from noetl_planner.api.history import step_runs
from noetl_planner.api.http.problems import NUMBER_MAX, ApiError
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup, views
from noetl_planner.api.lookup.views import Row
from noetl_storage.ports.history_ports import ShownEvent

EXECUTIONS_MAX = 200
# A loop may run a step with checks many times; an end of a step has a few hundred reports at most.
RUNS_MAX = 1000


class CheckView(Struct, frozen=True, kw_only=True):
    """What a check has found in a run of a step; `at` is when the run ended, in event `version`.

    `failed_rows` are those that break it, None for a check of the whole dataset, which has
    `measured`.
    """

    execution_id: str
    version: int
    at: datetime
    step: str
    task: str
    dataset: str
    check: str
    is_met: bool
    failed_rows: int | None
    measured: str | int | float | bool | None


class CheckList(Struct, frozen=True, kw_only=True):
    """Reports of checks in the latest `executions` of a playbook, the latest first.

    `next_before` asks for those of older executions. Executions whose history is archived have
    none here.
    """

    checks: list[CheckView]
    executions: int
    next_before: str | None


@get("/checks", tags=["results"])
async def list_checks(
    services: Services,
    path: Annotated[str, QueryParameter(min_length=1, max_length=512)],
    step: Annotated[str | None, QueryParameter(max_length=200)] = None,
    dataset: Annotated[str | None, QueryParameter(max_length=200)] = None,
    *,
    broken: FromQuery[bool] = False,
    before: Annotated[str | None, QueryParameter(max_length=30)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=EXECUTIONS_MAX)] = 20,
) -> CheckList:
    """List what checks have found in the latest executions of a playbook; `broken`: unmet ones."""
    playbook_path = path.strip("/")
    services.check_path(playbook_path, f"playbook {playbook_path!r}")
    place = None if before is None else execution_lookup.check_execution_id(before)
    rows = await services.history.projections.list_executions(
        **services.tenant_scope,
        status=None,
        path=playbook_path,
        before=place,
        executions_max=limit,
    )
    execution_ids = [ExecutionId(row["execution_id"]) for row in rows]
    events = await services.history.pages.list_check_events(
        execution_ids, step=step, events_max=RUNS_MAX + 1
    )
    if len(events) > RUNS_MAX:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            code="too_many_runs",
            detail=f"the latest {len(rows)} executions have more than {RUNS_MAX} runs with checks",
            hint="ask for fewer executions by limit, or for one step",
        )
    reports = [view for event in events for view in _view_reports(event)]
    return CheckList(
        checks=[
            report
            for report in reports
            if (dataset is None or report.dataset in {dataset, f"input '{dataset}'"})
            and not (broken and report.is_met)
        ],
        executions=len(rows),
        next_before=execution_ids[-1] if len(rows) == limit else None,
    )


def _view_reports(event: ShownEvent) -> Iterator[CheckView]:
    tasks = codec.convert_value(event.context["tasks"], MetricsByTask)
    for task, metrics in tasks.items():
        for report in metrics.checks:
            yield CheckView(
                execution_id=event.execution_id,
                version=event.version,
                at=event.event_time,
                step=event.context["step"],
                task=task,
                dataset=report.dataset,
                check=report.check,
                is_met=report.is_met,
                failed_rows=report.failed_rows,
                measured=report.measured,
            )


class RunCheckList(Struct, frozen=True, kw_only=True):
    """What the checks of an execution have found, the latest first.

    `more` says that there are older reports than are listed.
    """

    execution_id: str
    checks: list[CheckView]
    more: bool


@get("/executions/{execution_id:str}/checks", tags=["executions"])
async def list_run_checks(
    services: Services,
    execution_id: FromPath[str],
    step: Annotated[str | None, QueryParameter(max_length=200)] = None,
    version: Annotated[int | None, QueryParameter(ge=1, le=NUMBER_MAX)] = None,
) -> RunCheckList:
    """List what the checks of an execution have found, or had found by a version of it."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    events = await _find_check_events(services, row, step)
    return RunCheckList(
        execution_id=row["execution_id"],
        checks=[
            view
            for event in events[:RUNS_MAX]
            if version is None or event.version <= version
            for view in _view_reports(event)
        ],
        more=len(events) > RUNS_MAX,
    )


async def _find_check_events(services: ApiServices, row: Row, step: str | None) -> list[ShownEvent]:
    """Ask the ledger's index; a history that has left it is read from its archive."""
    events = await services.history.pages.list_check_events(
        [ExecutionId(row["execution_id"])], step=step, events_max=RUNS_MAX + 1
    )
    if events or not views.is_terminal(row):
        return events
    run_events = await step_runs.find_run_events(
        services.history, row, after=0, runs_max=RUNS_MAX + 1
    )
    return [
        event
        for event in reversed(run_events)
        if step in {None, event.context["step"]}
        and any(metrics.get("checks") for metrics in event.context.get("tasks", {}).values())
    ]


ROUTES = (list_checks, list_run_checks)
