"""Failpoints: what they are told, when they happen, and that each stands in one place."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from noetl_chassis import failpoints, settings
from noetl_chassis.failpoints import Failpoint, FailpointError, FailpointTrigger

ROOT = Path(__file__).parents[3]
ADDRESS = {"X_NATS_URL": "nats://x"}


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm_plan(None)


def loaded(text: str) -> settings.ServiceSettings:
    environ = {**ADDRESS, failpoints.VARIABLE: text}
    return settings.load_settings(settings.ServiceSettings, prefix="X_", environ=environ)


async def test_nothing_happens_unless_it_is_asked_for() -> None:
    assert settings.read_failpoint_plan(loaded("")) is None
    for point in Failpoint:
        await failpoints.pass_failpoint(point)


async def test_a_point_fails_at_the_passing_that_was_named_and_no_other() -> None:
    plan = failpoints.parse_plan("projector.apply.before:error@2, outbox.claimed:error")
    failpoints.arm_plan(plan)
    assert plan is not None
    await failpoints.pass_failpoint(Failpoint.PROJECTOR_APPLY_BEFORE)
    with pytest.raises(FailpointError, match=r"projector\.apply\.before"):
        await failpoints.pass_failpoint(Failpoint.PROJECTOR_APPLY_BEFORE)
    await failpoints.pass_failpoint(Failpoint.PROJECTOR_APPLY_BEFORE)
    for _ in range(2):
        with pytest.raises(FailpointError):
            await failpoints.pass_failpoint(Failpoint.OUTBOX_CLAIMED)
    assert plan.reached == {Failpoint.PROJECTOR_APPLY_BEFORE: 3, Failpoint.OUTBOX_CLAIMED: 2}


async def test_delays_and_pauses_end_by_themselves() -> None:
    failpoints.arm_plan(
        failpoints.parse_plan("worker.claimed:delay(1ms), worker.claimed:pause(0.001s)")
    )
    await failpoints.pass_failpoint(Failpoint.WORKER_CLAIMED)


async def test_what_happened_once_does_not_happen_in_the_next_process(tmp_path: Path) -> None:
    for expected in (1, 0):
        failpoints.arm_plan(failpoints.parse_plan("worker.claimed:error", once=str(tmp_path)))
        failures = 0
        for _ in range(3):
            try:
                await failpoints.pass_failpoint(Failpoint.WORKER_CLAIMED)
            except FailpointError:
                failures += 1
        assert failures == expected
    assert (tmp_path / "worker.claimed-error").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("projector.aply.before:kill", "there is no point 'projector.aply.before'; there are "),
        ("worker.claimed", "'worker.claimed' is not point:action@n"),
        ("worker.claimed:kill@0", "is not point:action@n"),
        ("worker.claimed:explode", "'explode' of 'worker.claimed:explode' is none of kill, error"),
        ("worker.claimed:pause", "say how long to pause or delay"),
        ("worker.claimed:kill(2s)", "say how long to pause or delay, and nothing else"),
        ("worker.claimed:delay(601s)", "lasts longer than 600 s"),
    ],
)
def test_a_wrong_wish_is_refused_at_the_start(text: str, sentence: str) -> None:
    with pytest.raises(settings.SettingsError, match="NOETL_FAILPOINTS: ") as refused:
        loaded(text)
    assert sentence in str(refused.value)


def test_an_unknown_point_is_answered_with_all_that_there_are() -> None:
    with pytest.raises(settings.SettingsError) as refused:
        loaded("nowhere.at.all:kill")
    assert all(point in str(refused.value) for point in Failpoint)


def test_a_plan_is_read_as_it_is_written() -> None:
    plan = failpoints.parse_plan(" worker.claimed:pause(1.5s)@7 ,outbox.claimed:kill")
    assert plan is not None
    pause, kill = plan._triggers
    assert pause == FailpointTrigger(
        point=Failpoint.WORKER_CLAIMED, action=failpoints.FailpointAction.PAUSE, seconds=1.5, at=7
    )
    assert (kill.action, kill.at) == (failpoints.FailpointAction.KILL, None)


def test_every_point_stands_in_exactly_one_place_of_its_service() -> None:
    places: dict[str, list[str]] = {point.name: [] for point in Failpoint}
    for path in (ROOT / "services").glob("*/src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "Failpoint"
            ):
                places[node.attr].append(path.relative_to(ROOT / "services").parts[0])
    expected = {point.name: [point.value.partition(".")[0]] for point in Failpoint}
    assert places == expected


def test_every_point_is_explained() -> None:
    page = (ROOT / "docs/operations/failpoints.md").read_text()
    assert [point for point in Failpoint if f"`{point}`" not in page] == []


def test_kill_ends_the_process_without_a_warning() -> None:
    code = (
        "import asyncio, atexit; from noetl_chassis import failpoints as f\n"
        "atexit.register(lambda: print('ended in peace'))\n"
        "f.arm_plan(f.parse_plan('worker.claimed:kill@2'))\n"
        "async def main():\n"
        "    [await f.pass_failpoint(f.Failpoint.WORKER_CLAIMED) for _ in range(3)]\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(  # noqa: S603 - our own lines
        [sys.executable, "-c", code], check=False, capture_output=True
    )
    assert done.returncode == -9
    assert b"in peace" not in done.stdout
