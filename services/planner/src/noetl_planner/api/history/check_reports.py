"""What the checks of a playbook's datasets have found, run after run."""

from collections.abc import Iterator
from datetime import datetime
from http import HTTPStatus
from typing import Annotated

from litestar import get
from litestar.params import FromQuery, QueryParameter
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import MetricsByTask
from noetl_contracts.ids import ExecutionId
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import Services
from noetl_planner.api.lookup import execution_lookup
from noetl_storage.ports.history_ports import ShownEvent

EXECUTIONS_MAX = 200
# A loop may run a step with checks many times; an end of a step has a few hundred reports at most.
RUNS_MAX = 1000


class CheckView(Struct, frozen=True, kw_only=True):
    """What a check has found in a run of a step; `at` is when the run ended.

    `failed_rows` are those that break it, None for a check of the whole dataset, which has
    `measured`.
    """

    execution_id: str
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
                at=event.event_time,
                step=event.context["step"],
                task=task,
                dataset=report.dataset,
                check=report.check,
                is_met=report.is_met,
                failed_rows=report.failed_rows,
                measured=report.measured,
            )


ROUTES = (list_checks,)
