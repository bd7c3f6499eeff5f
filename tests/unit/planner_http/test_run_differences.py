"""Two runs side by side: what differs of each, and what was left out of the comparison."""

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import pytest
from msgspec import structs
from tests.support.api import ApiWorld, beginning, ending
from tests.support.identities import OWNER, Caller, make_caller, make_guarded_app, open_client
from tests.support.storage import an_execution

from noetl_contracts import codec
from noetl_contracts.events.execution_events import PlaybookInitialized
from noetl_contracts.ids import ExecutionId
from noetl_planner.api.executions.moments import Moment, StepMoment
from noetl_planner.api.executions.run_differences import (
    RunDifference,
    RunSides,
    compare_inputs,
    compare_sides,
)
from noetl_planner.api.history.results import ResultOutline

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
STEP = StepMoment(
    step="load",
    status="COMPLETED",
    runs=1,
    retries=0,
    started_at=NOON,
    ended_at=NOON,
    duration=1.0,
    came_from=None,
)
RESULT = ResultOutline(
    step="load",
    run_id="1",
    status="ok",
    ref=None,
    bytes=None,
    row_count=None,
    fields={},
    digest="a" * 64,
)


def a_moment(number: int, **fields: Any) -> Moment:
    empty: Any = dict.fromkeys(Moment.__struct_fields__)
    return Moment(
        **{
            **empty,
            "execution_id": str(number),
            "path": "demo/orders",
            "status": "COMPLETED",
            "version": 9,
            "duration": 1.0 * number,
            "workload": {"day": 5},
            "steps": [STEP],
            **fields,
        }
    )


def compare(
    other: dict[str, Any], result: ResultOutline | None = RESULT, **sides: Any
) -> RunDifference:
    shown = [] if result is None else [result]
    return compare_sides(
        RunSides(
            **{
                "moments": (a_moment(1), a_moment(2, **other)),
                "results": ([RESULT], shown),
                "not_compared": [],
                "has_inputs": True,
                **sides,
            }
        )
    )


def test_runs_that_differ_in_nothing_but_time_are_alike() -> None:
    difference = compare({})
    assert difference.is_alike is True
    assert (difference.one.duration, difference.other.duration) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([structs.replace(STEP, status="FAILED")], "status"),
        ([structs.replace(STEP, error={"code": "x"})], "error"),
        ([structs.replace(STEP, runs=3)], "runs: 1, 3"),
        ([structs.replace(STEP, retries=2)], "retries: 0, 2"),
        ([structs.replace(STEP, came_from="begin")], "came from"),
        ([], "only in the first run"),
        ([STEP, structs.replace(STEP, step="end")], "only in the second run"),
    ],
)
def test_each_difference_of_a_step_is_said(steps: list[StepMoment], text: str) -> None:
    difference = compare({"steps": steps})
    assert difference.is_alike is False
    assert [word for step in difference.steps for word in step.differences] == [text]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (structs.replace(RESULT, digest="b" * 64), "result"),
        (structs.replace(RESULT, row_count=7), "rows: -, 7"),
        (None, "result"),
    ],
)
def test_results_differ_by_digest_and_by_rows(result: ResultOutline | None, text: str) -> None:
    difference = compare({}, result)
    assert difference.is_alike is False
    assert difference.steps[0].differences == [text]


@pytest.mark.parametrize(
    ("workload", "shown"),
    [
        ({"day": "5"}, {"name": "day", "one": 5, "other": "5"}),
        ({"day": None}, {"name": "day", "one": 5, "other": None}),
        ({}, {"name": "day", "one": 5}),
        ({"day": True}, {"name": "day", "one": 5, "other": True}),
    ],
)
def test_a_text_a_null_and_a_missing_input_are_told_apart(workload: Any, shown: Any) -> None:
    difference = compare({"workload": workload})
    assert difference.is_alike is False
    assert codec.decode_json(codec.encode_json(difference.inputs)) == [shown]


def test_true_is_no_number_one() -> None:
    assert compare_inputs({"n": [1]}, {"n": [True]}) != []
    assert compare_inputs({"n": {"a": 1, "b": 2}}, {"n": {"b": 2, "a": 1}}) == []


def test_a_run_of_another_playbook_is_not_alike() -> None:
    assert compare({"path": "demo/other"}).differences == ["path"]


def test_runs_that_are_not_shown_whole_are_never_called_alike() -> None:
    assert compare({}, not_compared=["something"]).is_alike is None
    assert compare({"status": "FAILED"}, not_compared=["something"]).is_alike is False


async def two_runs(world: ApiWorld) -> tuple[ExecutionId, ExecutionId]:
    """A run that has ended, and one with another input that goes on."""
    ended, live = an_execution(), an_execution()
    initialized, entered = beginning()
    assert isinstance(initialized, PlaybookInitialized)
    await world.append(ended, [*beginning(), *ending()])
    await world.append(live, [structs.replace(initialized, workload={"who": "Ann"}), entered])
    for execution_id in (ended, live):
        await world.project(execution_id)
    return ended, live


async def ask(world: ApiWorld, one: str, caller: Caller = OWNER, **query: Any) -> Any:
    async with open_client(make_guarded_app(world), caller) as client:
        return await client.get(f"/api/executions/{one}/difference", params=query)


async def test_two_runs_are_compared_by_their_ids() -> None:
    world = ApiWorld()
    ended, live = await two_runs(world)
    answer = await ask(world, ended, **{"with": live})
    assert answer.status_code == HTTPStatus.OK, answer.text
    shown = answer.json()
    assert shown["is_alike"] is False
    assert shown["differences"] == ["status"]
    assert shown["inputs"] == [{"name": "who", "one": "world", "other": "Ann"}]
    assert [step["differences"] for step in shown["steps"]] == [["status"]]
    assert (await ask(world, ended, **{"with": ended})).json()["is_alike"] is True


async def test_a_moment_of_the_past_is_compared_without_results() -> None:
    world = ApiWorld()
    ended, live = await two_runs(world)
    shown = (await ask(world, ended, **{"with": live, "version": 2})).json()
    assert (shown["one"]["version"], shown["one"]["status"]) == (2, "RUNNING")
    assert shown["differences"] == []
    assert shown["not_compared"] == ["results, of which the latest alone are listed"]


async def test_who_may_not_read_payloads_sees_no_inputs_and_hears_of_it() -> None:
    world = ApiWorld()
    ended, live = await two_runs(world)
    viewer = await make_caller(world, "viewer")
    shown = (await ask(world, ended, viewer, **{"with": live})).json()
    assert shown["inputs"] is None
    assert "Ann" not in str(shown)
    assert [step["one_digest"] for step in shown["steps"]] == [None]
    alike = (await ask(world, ended, viewer, **{"with": ended})).json()
    assert (alike["is_alike"], len(alike["not_compared"])) == (None, 1)


async def test_a_run_out_of_reach_is_not_there_to_compare_with() -> None:
    world = ApiWorld()
    ended, _ = await two_runs(world)
    elsewhere = an_execution()
    await world.append(elsewhere, beginning("other/secret"))
    await world.project(elsewhere)
    caller = await make_caller(world, "operator", path_prefix="demo")
    assert (await ask(world, ended, caller, **{"with": ended})).status_code == HTTPStatus.OK
    for other in (elsewhere, "72057594037927999", "x"):
        answer = await ask(world, ended, caller, **{"with": other})
        assert answer.status_code == HTTPStatus.NOT_FOUND, answer.text
    assert (await ask(world, ended, caller)).status_code == HTTPStatus.BAD_REQUEST
