"""Ask a store again while that may help."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from noetl_chassis import backoff, identity
from noetl_contracts.errors import Retryable

_TRIES_MAX = 8
_RETRY_BASE_S = 0.1
_RETRY_MAX_S = 5.0

T = TypeVar("T")


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Return what the call returns; raises its last `Retryable` after 6 to 11 s of trying."""
    tries = 0
    while True:
        try:
            return await call()
        except Retryable:
            tries += 1
            if tries == _TRIES_MAX:
                raise
        noise = identity.noise()
        await asyncio.sleep(
            backoff.delay_s(tries, base_s=_RETRY_BASE_S, max_s=_RETRY_MAX_S, noise=noise)
        )
