"""Retries calls of the payload store: until it is back, else for a few seconds."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import TypeVar

import structlog

from noetl_chassis import loop
from noetl_chassis.observability import instruments, names
from noetl_contracts.errors import Retryable
from noetl_contracts.ids import ExecutionId
from noetl_storage.ports.errors import StorageUnavailable
from noetl_worker.payloads import task_timeout

_TRIES_MAX = 8
_RETRY_BASE_S = 0.1
_RETRY_MAX_S = 5.0
# About as long as a store takes to restart; then it is said once a minute.
_TOLD_TRIES = 8
_TOLD_EVERY = 12
# A heartbeat names no more, so that it stays small.
EXECUTIONS_MAX = 50

T = TypeVar("T")

log = structlog.get_logger(__name__)


# Whose work a task does; what it calls inherits it.
_EXECUTION: ContextVar[ExecutionId | None] = ContextVar("execution", default=None)


@contextmanager
def bind_execution(execution_id: ExecutionId) -> Iterator[None]:
    """Count the store's calls of a block, and of the tasks that it starts, for an execution."""
    before = _EXECUTION.set(execution_id)
    try:
        yield
    finally:
        _EXECUTION.reset(before)


class StoreWaits:
    """Counts the calls of this process that wait for a store that is away, by execution."""

    def __init__(self) -> None:
        self.count = 0
        self._count_by_execution: Counter[ExecutionId] = Counter()

    def list_executions(self) -> tuple[ExecutionId, ...]:
        """Return the executions whose calls wait, `EXECUTIONS_MAX` at most."""
        return tuple(islice(self._count_by_execution, EXECUTIONS_MAX))

    @contextmanager
    def count_wait(self) -> Iterator[None]:
        """Count a call for as long as the block lasts."""
        execution_id = _EXECUTION.get()
        self._change_count(execution_id, 1)
        try:
            yield
        finally:
            self._change_count(execution_id, -1)

    def _change_count(self, execution_id: ExecutionId | None, by: int) -> None:
        self.count += by
        if execution_id is not None:
            self._count_by_execution[execution_id] += by
            if not self._count_by_execution[execution_id]:
                del self._count_by_execution[execution_id]
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
            await loop.sleep_backoff(tries, base_s=_RETRY_BASE_S, max_s=_RETRY_MAX_S)
        with WAITS.count_wait():
            return await _retry_until_back(call)


async def _retry_until_back(call: Callable[[], Awaitable[T]]) -> T:
    tries, other_failures = 1, 0
    while True:
        await loop.sleep_backoff(tries, base_s=_RETRY_BASE_S, max_s=_RETRY_MAX_S)
        tries += 1
        try:
            return await call()
        except StorageUnavailable as problem:
            _log_wait(tries, problem)
        except Retryable:
            other_failures += 1
            if other_failures == _TRIES_MAX:
                raise


def _log_wait(tries: int, problem: StorageUnavailable) -> None:
    if tries >= _TOLD_TRIES and (tries - _TOLD_TRIES) % _TOLD_EVERY == 0:
        log.warning("work waits for the payload store", tries=tries, reason=str(problem))
