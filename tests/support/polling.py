"""Wait for a condition, with an end."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02
# What a busy machine does late is no defect; only what never comes costs this long.
PATIENCE_S = 60.0


# Of the time between two looks so much counts: a machine that stands still for minutes, as those
# do that share a host, is no defect of what it runs.
LOOK_COUNTS_S = 5.0


class Patience:
    """Counts how long a wait has gone on, in seconds in which this machine ran."""

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._looked_at = time.monotonic()

    @property
    def has_ended(self) -> bool:
        """Count the time since the last look; tell whether none is left."""
        now = time.monotonic()
        self._left_s -= min(now - self._looked_at, LOOK_COUNTS_S)
        self._looked_at = now
        return self._left_s < 0


async def eventually(probe: Callable[[], Awaitable[T]], *, timeout_s: float = PATIENCE_S) -> T:
    """Ask until the answer is truthy; raise `TimeoutError` with the last answer when it is not."""
    answer: T | None = None
    patience = Patience(timeout_s)
    try:
        # One probe that hangs has its end as well.
        async with asyncio.timeout(timeout_s * 4) as bound:
            while not patience.has_ended:
                answer = await probe()
                if answer:
                    return answer
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        if not bound.expired():
            raise
    raise TimeoutError(f"not within {timeout_s} s; the last answer was {answer!r}")
