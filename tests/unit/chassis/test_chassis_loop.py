import asyncio
from datetime import UTC, datetime

import pytest
from opentelemetry.metrics import CallbackOptions
from tests.support.manual_clock import ManualClock

from noetl_chassis import loop
from noetl_chassis.loop import LoopHealth, RetryPauses
from noetl_chassis.observability import instruments, names
from noetl_contracts.errors import Retryable

QUICK = RetryPauses(base_s=0.001, max_s=0.002)


class Steps:
    """A step that plays a script of results and errors, then stops its loop."""

    def __init__(self, *script: int | Exception) -> None:
        self.script = list(script)
        self.stop = asyncio.Event()
        self.turns = 0
        self.turned = asyncio.Event()

    async def __call__(self) -> int:
        self.turns += 1
        self.turned.set()
        outcome = self.script.pop(0)
        if not self.script:
            self.stop.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def test_a_loop_outlives_every_error() -> None:
    steps = Steps(1, Retryable("later"), ValueError("bug"), 1)
    pulse = LoopHealth("work", stale_s=1)
    async with asyncio.timeout(60):
        await loop.run_every(0.001, steps, stop=steps.stop, loop_health=pulse, retry_pauses=QUICK)
    assert steps.turns == 4
    assert pulse.check_health() is None


async def test_failures_in_a_row_are_shown_until_a_turn_is_good_or_the_loop_ends() -> None:
    shown: list[float] = []

    async def look() -> int:
        shown.append(read_failures("shown"))
        return await steps()

    steps = Steps(
        1, Retryable("later"), ValueError("bug"), 1, Retryable("later"), ValueError("bug")
    )
    async with asyncio.timeout(60):
        await loop.run_every(0.001, look, stop=steps.stop, name="shown", retry_pauses=QUICK)
    assert shown == [0, 0, 1, 2, 0, 1]
    assert read_failures("shown") == 0


def read_failures(name: str) -> float:
    gauge = instruments._get_gauge(names.LOOP_FAILURES_IN_ROW)  # a process has one telemetry
    (shown,) = [
        value.value
        for value in gauge._observe_values(CallbackOptions())
        if (value.attributes or {}) == {names.LOOP: name}
    ]
    return float(shown)


async def test_a_stopped_loop_returns_promptly() -> None:
    stop = asyncio.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        steps = Steps(1, 1, 1)
        tasks.create_task(loop.run_every(3600, steps, stop=stop))
        await asyncio.sleep(0)
        stop.set()
    assert steps.turns == 1


async def test_cancellation_is_not_an_error_that_a_loop_survives() -> None:
    async def step() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await loop.run_every(0.001, step, stop=asyncio.Event())


async def test_a_pump_goes_on_at_once_while_there_is_work() -> None:
    steps = Steps(5, 5, 5, 0)
    async with asyncio.timeout(60):
        await loop.run_while_busy(steps, idle_s=3600, stop=steps.stop)
    assert steps.turns == 4


async def test_an_idle_pump_is_woken() -> None:
    steps, wake = Steps(0, 0), asyncio.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(loop.run_while_busy(steps, idle_s=3600, stop=steps.stop, wake=wake))
        await steps.turned.wait()
        wake.set()
    assert steps.turns == 2


async def test_a_drain_hands_over_what_came_and_nothing_else() -> None:
    batches = [[1, 2], [], [3]]
    stop, seen = asyncio.Event(), list[int]()

    class Batches:
        async def fetch_batch(self, *, messages_max: int, wait_s: float) -> list[int]:
            assert (messages_max, wait_s) == (10, 0)
            if not batches:
                stop.set()
                return []
            return batches.pop(0)

    async def step(batch: list[int]) -> None:
        seen.extend(batch)

    await loop.run_on_batches(Batches(), step, stop=stop, messages_max=10, wait_s=0)
    assert seen == [1, 2, 3]


def test_a_pulse_says_why_it_is_not_well() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    pulse = LoopHealth("sweep", stale_s=10, clock=clock)
    assert pulse.check_health() == "sweep has not turned yet"
    pulse.note_success()
    clock.advance_by(9)
    assert pulse.check_health() is None
    pulse.note_failure("Retryable: no database")
    clock.advance_by(2)
    assert pulse.check_health() == "sweep has not turned for 11 s: Retryable: no database"


@pytest.mark.parametrize(("attempt", "least", "most"), [(1, 0.5, 1), (2, 1, 2), (99, 4, 8)])
def test_backoff_doubles_up_to_its_end(attempt: int, least: float, most: float) -> None:
    assert loop.compute_backoff_s(attempt, base_s=1, max_s=8, noise=0) == least
    assert least < loop.compute_backoff_s(attempt, base_s=1, max_s=8, noise=0.99) < most
