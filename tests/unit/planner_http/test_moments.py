"""A run as it is and as it was: one answer, folded from the ledger for what is past."""

import asyncio
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import pytest
from tests.support.api import ApiWorld, beginning, ending
from tests.support.builders import STORIES, History
from tests.support.identities import OWNER, make_caller, make_guarded_app, open_client

from noetl_contracts.events import Event
from noetl_contracts.events.loop_events import LoopDone, LoopStarted, LoopStats
from noetl_contracts.events.step_events import StepEnter, StepExit
from noetl_contracts.ids import ExecutionId, RunId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.status import RunStatus
from noetl_planner.api.executions import moments
from noetl_planner.api.lookup import fold_slices
from noetl_planner.moments import moment_folds
from noetl_planner.moments.moment_folds import MomentFold, MomentFolds
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.state import ExecutionState, build_empty_state
from noetl_storage.ledger.frame_bins import bin_frames

EXECUTION = ExecutionId("72057594037927937")
MOMENT = f"/api/executions/{EXECUTION}/moment"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


async def a_world(*, is_ended: bool = True) -> ApiWorld:
    world = ApiWorld()
    await world.append(EXECUTION, [*beginning(), *(ending() if is_ended else [])])
    await world.project(EXECUTION)
    return world


async def show_moment(world: ApiWorld, **query: Any) -> Any:
    async with open_client(make_guarded_app(world), OWNER) as client:
        answer = await client.get(MOMENT, params=query)
    assert answer.status_code == HTTPStatus.OK, answer.text
    return answer.json()


async def test_the_present_is_shown_without_a_version() -> None:
    moment = await show_moment(await a_world())
    assert moment["status"] == "COMPLETED"
    assert (moment["version"], moment["head_version"], moment["is_past"]) == (4, 4, False)
    assert [(step["step"], step["status"]) for step in moment["steps"]] == [("start", "COMPLETED")]


async def test_a_version_shows_the_run_as_it_was_then() -> None:
    moment = await show_moment(await a_world(), version=2)
    assert moment["status"] == "RUNNING"
    assert (moment["version"], moment["head_version"], moment["is_past"]) == (2, 4, True)
    assert moment["ended_at"] is None
    assert [(step["step"], step["status"]) for step in moment["steps"]] == [("start", "RUNNING")]


async def test_before_its_first_step_a_run_has_none() -> None:
    moment = await show_moment(await a_world(), version=1)
    assert moment["steps"] == []


async def test_loops_stand_as_they_began_whatever_their_keys_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moments, "STAGES_MAX", 2)
    world = ApiWorld()

    def loop(step: str, run: str) -> list[Event]:
        run_id, stats = RunId(run), LoopStats(total=0, success=0, failed=0)
        return [
            StepEnter(step=step, run_id=run_id, activation=int(run) % 10),
            LoopStarted(step=step, run_id=run_id, mode="parallel", total=0, max_in_flight=1),
            LoopDone(step=step, run_id=run_id, stats=stats, result=ResultEnvelope(status="ok")),
            StepExit(step=step, run_id=run_id, status=RunStatus.COMPLETED),
        ]

    first = [beginning()[0], *loop("once", "91"), *loop("start", "72")]
    await world.append(EXECUTION, [*first, *loop("start", "53"), *loop("start", "24")])
    await world.project(EXECUTION)
    for query in ({}, {"version": 17}, {"version": 16}):
        moment = await show_moment(world, **query)
        # Of more than are shown: the latest of each step, and the latest of all.
        assert [loop["run_id"] for loop in moment["loops"]] == ["91", "24"]
        assert moment["more_stages"]
    assert [loop["run_id"] for loop in (await show_moment(world, version=12))["loops"]] == [
        *("91", "53"),
    ]


async def test_the_latest_version_is_the_present() -> None:
    world = await a_world()
    latest, present = await show_moment(world, version=4), await show_moment(world)
    assert latest == present


async def test_the_past_of_each_version_is_what_was_the_present_then() -> None:
    early = await show_moment(await a_world(is_ended=False))
    late = await show_moment(await a_world(), version=2)
    changing = {"head_version", "is_past", "duration", "steps", "at", "started_at", "checksum"}
    assert {k: v for k, v in early.items() if k not in changing} == {
        k: v for k, v in late.items() if k not in changing
    }


@pytest.mark.parametrize("version", [5, 10**6])
async def test_a_version_that_is_not_there_yet_is_refused(version: int) -> None:
    async with open_client(make_guarded_app(await a_world()), OWNER) as client:
        answer = await client.get(MOMENT, params={"version": version})
    assert answer.status_code == HTTPStatus.BAD_REQUEST
    assert answer.json()["hint"] == "its latest is 4"


async def test_who_may_not_read_payloads_sees_no_values() -> None:
    world = await a_world()
    viewer = await make_caller(world, "viewer")
    async with open_client(make_guarded_app(world), viewer) as client:
        for version in (None, 2):
            query = {} if version is None else {"version": version}
            moment = (await client.get(MOMENT, params=query)).json()
            assert moment["workload"] is None
            assert moment["variables"] == {}
    assert (await show_moment(world))["workload"] == {"who": "world"}


async def ask_moment(world: ApiWorld, version: int, execution_id: ExecutionId = EXECUTION) -> Any:
    async with open_client(make_guarded_app(world), OWNER) as client:
        return await client.get(
            f"/api/executions/{execution_id}/moment", params={"version": version}
        )


async def test_a_far_moment_is_folded_in_slices_and_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fold_slices, "SLICE_EVENTS", 1)
    world = await a_world()
    app = make_guarded_app(world)
    async with open_client(app, OWNER) as client:
        answers = [await client.get(MOMENT, params={"version": 3}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 200]
    assert [answer.json().get("folded") for answer in answers[:2]] == [1, 2]
    monkeypatch.setattr(fold_slices, "SLICE_EVENTS", 1000)
    assert answers[-1].json() == (await ask_moment(world, 3)).json()


@pytest.mark.parametrize("versions", [[1, 2, 3], [3, 2, 1], [2, 2, 3], [3, 1, 3]])
async def test_moments_are_the_same_in_whichever_order_they_are_asked_for(
    versions: list[int],
) -> None:
    world = await a_world()
    app = make_guarded_app(world)
    async with open_client(app, OWNER) as client:
        for version in versions:
            shown = (await client.get(MOMENT, params={"version": version})).json()
            assert shown == (await ask_moment(world, version)).json(), version


@pytest.mark.parametrize("name", sorted(STORIES))
def test_a_fold_shows_what_a_replay_shows(name: str) -> None:
    history = STORIES[name]()
    replay = HistoryReplay(empty_state_of(history))
    fold = MomentFold(empty_state_of(history))
    for envelope in history.envelopes:
        replay.feed_events([envelope])
        fold.feed_events([envelope])
        for surface in ("stage", "loop"):
            assert fold.list_rows(surface) == list(replay.surfaces[surface].values())
        assert [fold.show_execution()] == list(replay.surfaces["execution"].values())
        frames = replay.surfaces["frame"].values()
        for bins_max in (1, 3):
            assert fold.bin_frames(bins_max=bins_max) == bin_frames(frames, bins_max=bins_max)


def empty_state_of(history: History) -> ExecutionState:
    first = history.envelopes[0]
    return build_empty_state(first.execution_id, first.tenant_id, first.organization_id)


async def test_folds_are_kept_within_bounds_the_latest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moment_folds, "FOLDS_MAX", 2)
    folds = MomentFolds()
    kept = [
        MomentFold(build_empty_state(ExecutionId(str(number)), "acme", "west"))  # type: ignore[arg-type]  # any names
        for number in range(3)
    ]
    for fold in kept:
        folds.keep_fold(fold)
    assert folds.take_fold(ExecutionId("0"), 9) is None
    assert folds.take_fold(ExecutionId("2"), 9) is kept[2]
    # It is in use: nobody else gets it.
    assert folds.take_fold(ExecutionId("2"), 9) is None


async def test_who_leaves_loses_no_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await a_world()
    services = world.services()
    read_events = world.ledger.read_events

    async def read_and_wait(*args: Any, **named: Any) -> Any:
        page = await read_events(*args, **{**named, "events_max": 1})
        if page[0].stream_version == 3:
            raise asyncio.CancelledError
        return page

    monkeypatch.setattr(world.ledger, "read_events", read_and_wait)
    with pytest.raises(asyncio.CancelledError):
        await moments.view_moment(services, EXECUTION, 3)
    kept = services.history.moment_folds.take_fold(EXECUTION, 3)
    assert kept is not None
    assert kept.state.version == 2


def a_frame(number: int, *, status: str = "COMPLETED", seconds: float | None = 1.0) -> Any:
    return {
        "stage_id": "7",
        "frame_id": str(100 + number),
        "status": status,
        "row_count": 10,
        "created_at": NOON,
        "completed_at": None if seconds is None else NOON + timedelta(seconds=seconds),
    }


def test_frames_are_shared_out_evenly_and_none_is_lost() -> None:
    found = bin_frames([a_frame(n) for n in range(10)], bins_max=4)
    bins = found.bins
    assert [item.frames for item in bins] == [3, 3, 2, 2]
    assert [item.place for item in bins] == [1, 2, 3, 4]
    assert (bins[0].first, bins[-1].last) == ("100", "109")
    assert sum(item.rows for item in bins) == 100
    (whole,) = found.stages
    assert (whole.frames, whole.rows, whole.first, whole.last) == (10, 100, "100", "109")


def test_a_bin_counts_by_state_and_measures_what_has_ended() -> None:
    frames = [
        *(a_frame(n, seconds=n + 1) for n in range(4)),
        a_frame(4, status="FAILED", seconds=9),
        a_frame(5, status="RUNNING", seconds=None),
        a_frame(6, status="CANCELLED", seconds=None),
    ]
    (item,) = bin_frames(frames, bins_max=1).bins
    assert (item.done, item.failed, item.running, item.cancelled) == (4, 1, 1, 1)
    assert (item.min_s, item.p50_s, item.p95_s, item.max_s) == (1.0, 3.0, 9.0, 9.0)


def test_a_bin_in_which_no_frame_has_ended_has_no_durations() -> None:
    (item,) = bin_frames([a_frame(1, status="RUNNING", seconds=None)], bins_max=1).bins
    assert (item.min_s, item.p50_s, item.p95_s, item.max_s) == (None, None, None, None)


def test_twenty_thousand_frames_make_no_more_bins_than_a_page_shows() -> None:
    assert len(bin_frames([a_frame(n) for n in range(20_000)], bins_max=160).bins) == 160


async def test_a_text_is_checked_as_lint_does_and_kept_nowhere() -> None:
    world = ApiWorld()
    async with open_client(make_guarded_app(world), OWNER) as client:
        text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: a, path: a/b}\n"
        bad = (await client.post("/api/catalog/check", json={"content": text})).json()
        whole = text + "workflow:\n  - step: start\n    tool: {kind: noop}\n"
        good = (await client.post("/api/catalog/check", json={"content": whole})).json()
        listed = (await client.get("/api/catalog")).json()
    assert bad["plan"] is None
    assert any(problem["severity"] == "error" for problem in bad["problems"])
    assert [step["step"] for step in good["plan"]["steps"]] == ["start"]
    assert (good["path"], good["problems"]) == ("a/b", [])
    assert listed["playbooks"] == []
