"""How long an event loop is held, by the processor time of its thread."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TICK_S = 0.001


class LoopLag:
    """The longest processor times that were spent between two looks at an event loop."""

    def __init__(self) -> None:
        self.held_s: list[float] = []

    async def watch(self) -> None:
        """Look at the loop until cancelled."""
        spent = time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.thread_time()
            self.held_s.append(now - spent)
            spent = now

    def held_over(self, seconds: float) -> list[float]:
        """Return how long the loop was held, each time that it was longer than that."""
        return [held for held in self.held_s if held > seconds]


def measure_fork_s() -> float:
    """Measure the processor time of a fork of this process, which grows with its memory.

    A planner's process is small. One that has run many tests before is not.
    """
    spent: list[float] = []
    for _ in range(3):
        began = time.thread_time()
        child = os.fork()
        if not child:
            os._exit(0)
        spent.append(time.thread_time() - began)
        os.waitpid(child, 0)
    return max(spent)


@asynccontextmanager
async def watch_loop() -> AsyncIterator[LoopLag]:
    """Watch the running loop while the block runs."""
    lag = LoopLag()
    watching = asyncio.create_task(lag.watch())
    await asyncio.sleep(TICK_S * 5)
    try:
        yield lag
        await asyncio.sleep(TICK_S * 5)
    finally:
        watching.cancel()
