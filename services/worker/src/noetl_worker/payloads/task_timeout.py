"""Timeout of a task that does not count the time in which the payload store is away.

A store that is away fails nobody's attempt, so it must not use up a task's `timeout` either. While
a task asks the store its clock stands; what the store has answered is counted afterwards.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar


class _TaskClock:
    """One deadline, which calls that are under way at the same time hold up together."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._asking = 0
        self._away_s = 0.0
        self._due_s = 0.0
        self.is_over = False

    def stop_clock(self) -> bool:
        """Hold the clock; False when it has run out, or the task is past it."""
        due_s = self._timeout.when()
        if self.is_over or self._timeout.expired() or (due_s is None and not self._asking):
            return False
        if due_s is not None:
            self._due_s = due_s
            self._timeout.reschedule(None)
        self._asking += 1
        return True

    def resume_clock(self, away_s: float) -> None:
        """Let the clock go on when nobody asks any more, later by what a store was away."""
        self._asking -= 1
        self._away_s = max(self._away_s, away_s)
        if self._asking or self.is_over:
            return
        self._timeout.reschedule(self._due_s + self._away_s)
        self._away_s = 0.0


class StoreCall:
    """One call of the payload store; the caller marks the time that the store is unavailable."""

    def __init__(self) -> None:
        self.is_away = False


_CLOCKS: ContextVar[tuple[_TaskClock, ...]] = ContextVar("clocks", default=())


@asynccontextmanager
async def task_timeout(seconds: float) -> AsyncIterator[None]:
    """Bound a block as `asyncio.timeout` does, without what it waits for a store that is away."""
    async with asyncio.timeout(seconds) as timeout:
        clock = _TaskClock(timeout)
        before = _CLOCKS.set((*_CLOCKS.get(), clock))
        try:
            yield
        finally:
            clock.is_over = True
            _CLOCKS.reset(before)


@contextmanager
def track_store_call() -> Iterator[StoreCall]:
    """Hold the clocks of the task that asks, and count afterwards what was not waiting."""
    store_call, began = StoreCall(), asyncio.get_running_loop().time()
    task_clocks = [clock for clock in _CLOCKS.get() if clock.stop_clock()]
    try:
        yield store_call
    finally:
        lasted = asyncio.get_running_loop().time() - began
        for clock in task_clocks:
            clock.resume_clock(lasted if store_call.is_away else 0.0)
