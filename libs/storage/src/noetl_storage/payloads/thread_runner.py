"""A bounded set of threads for clients that block."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# What a store that answers needs for a call; a service has more time than that for its end.
GRACE_S = 5.0


class ThreadRunner:
    """Runs blocking calls beside the event loop, at most so many at a time.

    They are daemons, unlike those of the standard library's pool: a call that outlasts the grace
    of its service, as one to a store that is away may by minutes, does not keep the process.
    """

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._thread_count = 0
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._under_way: set[Future[Any]] = set()
        self._is_closed = False

    async def run_call(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call in a thread and wait for its result."""
        if self._is_closed:
            raise RuntimeError("the threads of this store are closed")
        answer: Future[R] = Future()
        self._under_way.add(answer)
        answer.add_done_callback(self._under_way.discard)
        self._calls.put(partial(_answer_call, answer, partial(call, *args, **kwargs)))
        if self._thread_count < min(len(self._under_way), self._threads_max):
            self._thread_count += 1
            threading.Thread(target=self._serve_calls, name="payloads", daemon=True).start()
        return await asyncio.wrap_future(answer)

    async def close(self, *, grace_s: float = GRACE_S) -> int:
        """Take no more, and let what runs finish within its grace; the loop goes on meanwhile.

        Returns how many calls are left behind.
        """
        self._is_closed = True
        running_calls = [
            asyncio.wrap_future(call) for call in list(self._under_way) if not call.cancel()
        ]
        for _ in range(self._thread_count):
            self._calls.put(None)
        if not running_calls:
            return 0
        ended_calls, unfinished_calls = await asyncio.wait(running_calls, timeout=grace_s)
        for call in ended_calls:
            # The caller gets the failure; here it is only marked as retrieved.
            call.exception()
        for call in unfinished_calls:
            call.cancel()
        return len(unfinished_calls)

    def _serve_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _answer_call(answer: Future[R], call: Callable[[], R]) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as failure:  # noqa: BLE001 - it is raised where the call was asked for
        answer.set_exception(failure)
        return
    answer.set_result(result)
