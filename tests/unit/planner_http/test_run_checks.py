"""What the checks of one execution have found, now and at a version of its history."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld, beginning
from tests.support.storage import an_execution

from noetl_contracts.commands.data_checks import CheckReport
from noetl_contracts.commands.task_metrics import TaskMetrics
from noetl_contracts.events.execution_events import PlaybookCompleted
from noetl_contracts.events.step_events import StepEnter, StepExit
from noetl_contracts.ids import ExecutionId, RunId
from noetl_contracts.status import RunStatus
from noetl_planner.api.app import create_app
from noetl_planner.api.history import check_reports

Api = AsyncTestClient[Litestar]
NULLS = CheckReport(dataset="input 'orders'", check="not_null id", is_met=False, failed_rows=2)
COUNT = CheckReport(dataset="output", check="row_count", is_met=True, measured=3)


def an_exit(step: str, run: str, *checks: CheckReport) -> StepExit:
    tasks = {"work": TaskMetrics(attempts=1, checks=checks)}
    return StepExit(step=step, run_id=RunId(run), status=RunStatus.COMPLETED, tasks=tasks)


async def a_checked_run(world: ApiWorld) -> ExecutionId:
    """A run of three steps: the first and the last have checks, told in versions 3 and 7."""
    execution_id = an_execution()
    history = [
        *beginning(),
        an_exit("start", "11", NULLS),
        StepEnter(step="plain", run_id=RunId("12"), activation=2),
        an_exit("plain", "12"),
        StepEnter(step="load", run_id=RunId("13"), activation=3),
        an_exit("load", "13", NULLS, COUNT),
        PlaybookCompleted(step="load"),
    ]
    await world.append(execution_id, history)
    await world.project(execution_id)
    return execution_id


async def list_checks(api: Api, execution_id: str, **params: Any) -> list[tuple[Any, ...]]:
    answer = await api.get(f"/api/executions/{execution_id}/checks", params=params)
    assert answer.status_code == 200, answer.text
    return [
        (check["version"], check["step"], check["check"], check["is_met"])
        for check in answer.json()["checks"]
    ]


ALL = [
    (7, "load", "not_null id", False),
    (7, "load", "row_count", True),
    (3, "start", "not_null id", False),
]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, ALL),
        ({"step": "load"}, ALL[:2]),
        ({"step": "plain"}, []),
        ({"version": 6}, ALL[2:]),
        ({"version": 7}, ALL),
        ({"version": 2}, []),
    ],
)
async def test_checks_are_listed_as_they_were_known(
    api: Api, world: ApiWorld, params: dict[str, Any], expected: list[Any]
) -> None:
    assert await list_checks(api, await a_checked_run(world), **params) == expected


class NoIndex:
    """Pages of a ledger that the history has left."""

    async def list_check_events(self, *_: Any, **__: Any) -> list[Any]:
        return []

    async def find_run_events(self, *_: Any, **__: Any) -> list[Any]:
        return []


@pytest.mark.parametrize("step", [None, "load"])
async def test_an_archived_history_tells_the_same(world: ApiWorld, step: str | None) -> None:
    execution_id = await a_checked_run(world)
    params = {} if step is None else {"step": step}
    async with AsyncTestClient(create_app(world.services(pages=NoIndex()))) as client:
        found = await list_checks(client, execution_id, **params)
    assert found == [check for check in ALL if step in {None, check[1]}]


async def test_more_than_are_listed_is_told(
    api: Api, world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution_id = await a_checked_run(world)
    monkeypatch.setattr(check_reports, "RUNS_MAX", 1)
    answer = (await api.get(f"/api/executions/{execution_id}/checks")).json()
    assert answer["more"] is True
    assert {check["version"] for check in answer["checks"]} == {7}


async def test_an_unknown_execution_has_no_checks(api: Api) -> None:
    answer = await api.get(f"/api/executions/{an_execution()}/checks")
    assert answer.status_code == 404
