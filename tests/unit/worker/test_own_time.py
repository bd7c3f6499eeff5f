"""A task's `timeout` counts what the task does, and no wait for a payload store that is away."""

import asyncio
import random
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

import pytest
from tests.simulation.virtual import VirtualLoop

from noetl_storage.ports.errors import StorageRefused, StorageUnavailable
from noetl_worker.payloads.payload_retry import retry_store_call
from noetl_worker.payloads.task_timeout import task_timeout

T = TypeVar("T")

HOURS_S = 3 * 3_600.0


def passing(run: Coroutine[Any, Any, T]) -> T:
    """Run it while time jumps from one timer to the next."""
    loop = VirtualLoop(random.Random(7), in_order=True)
    try:
        return loop.run_until_complete(run)
    finally:
        loop.close()


class Store:
    """Away until a moment, and as slow as it is said to be; a call to one that hangs takes long."""

    def __init__(self, *, away_s: float = 0.0, takes_s: float = 0.0, hangs_s: float = 0.0) -> None:
        self._away_s = away_s
        self._takes_s = takes_s
        self._hangs_s = hangs_s

    async def get(self) -> str:
        if asyncio.get_running_loop().time() < self._away_s:
            await asyncio.sleep(self._hangs_s)
            raise StorageUnavailable("it is away")
        await asyncio.sleep(self._takes_s)
        return "content"


def asked(store: Store) -> Awaitable[str]:
    return retry_store_call(store.get)


async def passes(seconds: float) -> None:
    """Let virtual time pass: what a task does itself."""
    await asyncio.sleep(seconds)


@pytest.mark.parametrize("hangs_s", [0.0, 140.0])
def test_a_store_that_is_away_does_not_use_up_the_time(hangs_s: float) -> None:
    async def task() -> str:
        async with task_timeout(10):
            await passes(4)
            found = await asked(Store(away_s=HOURS_S, hangs_s=hangs_s))
            await passes(4)
        return found

    assert passing(task()) == "content"


def test_what_the_task_does_itself_is_counted_before_and_after() -> None:
    async def task() -> None:
        async with task_timeout(10):
            await passes(6)
            await asked(Store(away_s=HOURS_S))
            await passes(6)

    with pytest.raises(TimeoutError):
        passing(task())


def test_a_store_that_answers_is_part_of_what_the_task_does() -> None:
    async def task() -> None:
        async with task_timeout(10):
            await asked(Store(takes_s=6))
            await asked(Store(takes_s=6))
            await passes(0.1)

    with pytest.raises(TimeoutError):
        passing(task())


def test_calls_at_the_same_time_stop_the_time_once() -> None:
    async def task(own_s: float) -> list[str]:
        async with task_timeout(10):
            stores = [Store(away_s=HOURS_S), Store(away_s=2 * HOURS_S), Store(takes_s=3)]
            found = await asyncio.gather(*map(asked, stores))
            await passes(own_s)
        return found

    assert passing(task(9)) == ["content"] * 3
    with pytest.raises(TimeoutError):
        passing(task(11))


def test_a_store_that_refuses_is_not_away() -> None:
    async def refuse() -> None:
        await passes(6)
        raise StorageRefused("not this one")

    async def task() -> None:
        async with task_timeout(10):
            try:
                await retry_store_call(refuse)
            except StorageRefused:
                await passes(1)

    with pytest.raises(TimeoutError):
        passing(task())


def test_a_task_may_be_called_off_while_it_waits() -> None:
    async def waiting() -> str:
        async with task_timeout(10):
            return await asked(Store(away_s=HOURS_S))

    async def task() -> None:
        running = asyncio.ensure_future(waiting())
        await passes(60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    passing(task())


def test_what_outlives_the_task_stops_nothing() -> None:
    async def task() -> str:
        async with task_timeout(10):
            late = asyncio.ensure_future(asked(Store(away_s=60)))
            await passes(1)
        await passes(120)
        later = asyncio.ensure_future(asked(Store(away_s=HOURS_S)))
        return await late + await later

    assert passing(task()) == "contentcontent"


def test_time_that_has_run_out_is_not_given_back() -> None:
    async def task() -> None:
        async with task_timeout(1):
            try:
                await passes(2)
            finally:
                await asked(Store(away_s=HOURS_S))

    with pytest.raises(TimeoutError):
        passing(task())
