"""Wait for a condition, with an end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02
# What a busy machine does late is no defect; only what never comes costs this long.
PATIENCE_S = 60.0


async def eventually(probe: Callable[[], Awaitable[T]], *, timeout_s: float = PATIENCE_S) -> T:
    """Ask until the answer is truthy; raise `TimeoutError` with the last answer when it is not."""
    answer: T | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                answer = await probe()
                if answer:
                    return answer
                await asyncio.sleep(POLL_S)
    except TimeoutError as failure:
        raise TimeoutError(f"not within {timeout_s} s; the last answer was {answer!r}") from failure
