"""Receives the hints of a subject for as long as a service runs, however often it is cut off."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import structlog

from noetl_contracts.errors import Retryable

T = TypeVar("T")

log = structlog.get_logger(__name__)

RETRY_S = 1.0


async def receive_hints(
    subscribe: Callable[[], AsyncIterator[T]],
    receive: Callable[[T], None],
    *,
    subject: str,
    retry_s: float = RETRY_S,
) -> None:
    """Give every hint to `receive` until cancelled; subscribe again after an interruption.

    Hints that are sent between two subscriptions are lost. `receive` must not raise.
    """
    while True:
        try:
            async for hint in subscribe():
                receive(hint)
        except Retryable as problem:
            log.info("hints interrupted", subject=subject, reason=str(problem))
        await asyncio.sleep(retry_s)
