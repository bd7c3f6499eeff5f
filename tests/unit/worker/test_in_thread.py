"""Work in threads whose caller is called off."""

import asyncio
import threading
from typing import Any

import pytest

from noetl_chassis.blocking_work import (
    StopSign,
    run_in_thread,
    run_until_stopped,
    wait_until_ended,
)


class Work:
    """Blocks until it may end, and says when it has."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.begun, self.may_end, self.has_ended = (threading.Event() for _ in range(3))
        self._problem = problem

    def __call__(self) -> str:
        self.begun.set()
        assert self.may_end.wait(60)
        self.has_ended.set()
        if self._problem is not None:
            raise self._problem
        return "done"


async def called_off(caller: "asyncio.Task[Any]", work: Work, *, times: int) -> None:
    await asyncio.to_thread(work.begun.wait)
    for _ in range(times):
        caller.cancel()
        # Each is delivered, and answered by waiting on.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not caller.done()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.has_ended.is_set()


async def test_what_work_gives_and_raises_comes_back() -> None:
    assert await run_in_thread(int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await run_in_thread(int, "x")


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("problem", [None, OSError("no room")])
async def test_who_is_called_off_goes_when_the_work_has_ended(
    problem: OSError | None, times: int
) -> None:
    work = Work(problem)
    await called_off(asyncio.create_task(run_in_thread(work)), work, times=times)


async def test_a_timeout_stays_one() -> None:
    work = Work(OSError("no room"))
    asyncio.get_running_loop().call_later(0.05, work.may_end.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_in_thread(work)
    assert work.has_ended.is_set()


async def test_work_is_interrupted_until_it_ends() -> None:
    work = Work()
    running = asyncio.get_running_loop().run_in_executor(None, work)
    urged = 0

    def interrupt() -> None:
        nonlocal urged
        urged += 1
        if urged > 1:
            work.may_end.set()

    caller = asyncio.create_task(wait_until_ended(running, interrupt=interrupt))
    await asyncio.to_thread(work.begun.wait)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert urged > 1
    assert work.has_ended.is_set()


async def test_what_work_waits_for_is_interrupted_while_it_waits() -> None:
    begun, interrupted = threading.Event(), threading.Event()
    found: list[bool] = []

    def wait_long(sign: StopSign) -> None:
        with sign.interrupt_by(interrupted.set):
            begun.set()
            found.append(interrupted.wait(60))
        interrupted.clear()
        sign.raise_sign()
        found.append(interrupted.is_set())

    caller = asyncio.create_task(run_until_stopped(wait_long))
    await asyncio.to_thread(begun.wait)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert found == [True, False]


async def test_all_that_work_waits_for_is_interrupted() -> None:
    interrupted = (threading.Event(), threading.Event())
    begun = threading.Event()

    def wait_for_both(sign: StopSign) -> None:
        outer, inner = interrupted
        with sign.interrupt_by(outer.set), sign.interrupt_by(inner.set):
            begun.set()
            assert outer.wait(60)
            assert inner.wait(60)

    task = asyncio.create_task(run_until_stopped(wait_for_both))
    assert await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(event.is_set() for event in interrupted)
