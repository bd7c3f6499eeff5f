"""Retries calls of the payload store: until it is back, else for a few seconds."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import structlog

from noetl_chassis import identity, loop
from noetl_chassis.observability import instruments, names
from noetl_contracts.errors import Retryable
from noetl_storage.ports.errors import StorageUnavailable
from noetl_worker.payloads import task_timeout

_TRIES_MAX = 8
_RETRY_BASE_S = 0.1
_RETRY_MAX_S = 5.0
# About as long as a store takes to restart; then it is said once a minute.
_TOLD_TRIES = 8
_TOLD_EVERY = 12

T = TypeVar("T")

log = structlog.get_logger(__name__)


class StoreWaits:
    """Counts the calls of this process that wait for a store that is away."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def count_wait(self) -> Iterator[None]:
        """Count a call for as long as the block lasts."""
        self._change_count(1)
        try:
            yield
        finally:
            self._change_count(-1)

    def _change_count(self, by: int) -> None:
        self.count += by
        instruments.set_gauge(names.STORE_WAITS, self.count)


# One store a process: who is asked how it is says the same for all of its commands.
WAITS = StoreWaits()


async def retry_store_call(call: Callable[[], Awaitable[T]]) -> T:
    """Return what the call returns; raises its last `Retryable` after 6 to 11 s of trying.

    A store that is away fails nobody's attempt: it is asked until it answers, and what was worked
    out is kept here meanwhile. The caller limits that wait: the lease of a command ends it when it
    is lost, when the execution is cancelled, or when the worker leaves. A task's own `timeout` does
    not count it.
    """
    with task_timeout.track_store_call() as asking:
        for tries in range(1, _TRIES_MAX + 1):
            try:
                return await call()
            except StorageUnavailable:
                asking.is_away = True
                break
            except Retryable:
                if tries == _TRIES_MAX:
                    raise
            await _sleep_backoff(tries)
        with WAITS.count_wait():
            return await _retry_until_back(call)


async def _retry_until_back(call: Callable[[], Awaitable[T]]) -> T:
    tries, others = 1, 0
    while True:
        await _sleep_backoff(tries)
        tries += 1
        try:
            return await call()
        except StorageUnavailable as problem:
            _log_wait(tries, problem)
        except Retryable:
            others += 1
            if others == _TRIES_MAX:
                raise


def _log_wait(tries: int, problem: StorageUnavailable) -> None:
    if tries >= _TOLD_TRIES and (tries - _TOLD_TRIES) % _TOLD_EVERY == 0:
        log.warning("work waits for the payload store", tries=tries, reason=str(problem))


async def _sleep_backoff(tries: int) -> None:
    noise = identity.draw_noise()
    await asyncio.sleep(
        loop.backoff_delay_s(tries, base_s=_RETRY_BASE_S, max_s=_RETRY_MAX_S, noise=noise)
    )
