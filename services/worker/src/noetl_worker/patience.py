"""Ask the payload store again: while it is away without an end, else as long as that may help."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import structlog

from noetl_chassis import backoff, identity, instruments, names
from noetl_contracts.errors import Retryable
from noetl_storage.errors import StorageUnavailable
from noetl_worker import own_time

_TRIES_MAX = 8
_RETRY_BASE_S = 0.1
_RETRY_MAX_S = 5.0
# About as long as a store takes to restart; then it is said once a minute.
_TOLD_TRIES = 8
_TOLD_EVERY = 12

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Waits:
    """Counts the calls of this process that wait for a store that is away."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a call for as long as the block lasts."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def _change(self, by: int) -> None:
        self.count += by
        instruments.show(names.STORE_WAITS, self.count)


# One store a process: who is asked how it is says the same for all of its commands.
WAITS = Waits()


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Return what the call returns; raises its last `Retryable` after 6 to 11 s of trying.

    A store that is away fails nobody's attempt: it is asked until it answers, and what was worked
    out is kept here meanwhile. Whoever calls bounds that wait: the hold of a command ends it when
    its lease is lost, its execution is cancelled, or the worker leaves. A task's own `timeout`
    does not count it.
    """
    with own_time.asking() as asking:
        for tries in range(1, _TRIES_MAX + 1):
            try:
                return await call()
            except StorageUnavailable:
                asking.is_away = True
                break
            except Retryable:
                if tries == _TRIES_MAX:
                    raise
            await _rest(tries)
        with WAITS.one_more():
            return await _until_back(call)


async def _until_back(call: Callable[[], Awaitable[T]]) -> T:
    tries, others = 1, 0
    while True:
        await _rest(tries)
        tries += 1
        try:
            return await call()
        except StorageUnavailable as problem:
            _tell(tries, problem)
        except Retryable:
            others += 1
            if others == _TRIES_MAX:
                raise


def _tell(tries: int, problem: StorageUnavailable) -> None:
    if tries >= _TOLD_TRIES and (tries - _TOLD_TRIES) % _TOLD_EVERY == 0:
        log.warning("work waits for the payload store", tries=tries, reason=str(problem))


async def _rest(tries: int) -> None:
    noise = identity.noise()
    await asyncio.sleep(
        backoff.delay_s(tries, base_s=_RETRY_BASE_S, max_s=_RETRY_MAX_S, noise=noise)
    )
