"""Blocking calls beside the loop: bounded, and no reason for a process not to end."""

import asyncio
import subprocess
import sys
import threading

import pytest

from noetl_storage.payloads.thread_runner import ThreadRunner

# A process whose only call never ends by itself.
STUCK = """
import asyncio, threading
from noetl_storage.payloads.thread_runner import ThreadRunner

async def main():
    threads, begun = ThreadRunner(1), threading.Event()
    def block():
        begun.set()
        threading.Event().wait()
    asking = asyncio.ensure_future(threads.run_call(block))
    await asyncio.to_thread(begun.wait)
    left = await threads.close(grace_s=0.01)
    print(left)
    asking.cancel()

asyncio.run(main())
print("over")
"""


class Blocked:
    """A call that goes on until it is released."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.count = 0
        self.released = threading.Event()

    def __call__(self) -> str:
        self.count += 1
        self.begun.release()
        self.released.wait()
        return "done"


@pytest.fixture
def blocked() -> Blocked:
    return Blocked()


async def begun(call: Blocked) -> None:
    await asyncio.to_thread(call.begun.acquire)


async def test_so_many_calls_run_at_once_and_no_more(blocked: Blocked) -> None:
    threads = ThreadRunner(2)
    futures = [asyncio.ensure_future(threads.run_call(blocked)) for _ in range(5)]
    await begun(blocked)
    await begun(blocked)
    assert blocked.count == 2
    blocked.released.set()
    assert await asyncio.gather(*futures) == ["done"] * 5
    await threads.close()


async def test_a_failure_is_raised_where_the_call_was_asked_for() -> None:
    threads = ThreadRunner(1)
    with pytest.raises(ValueError, match="invalid literal"):
        await threads.run_call(int, "x")
    assert await threads.run_call(int, "7") == 7
    await threads.close()


async def test_what_runs_may_finish_while_the_loop_goes_on(blocked: Blocked) -> None:
    threads = ThreadRunner(1)
    future = asyncio.ensure_future(threads.run_call(blocked))
    await begun(blocked)
    closing = asyncio.ensure_future(threads.close(grace_s=600))
    await asyncio.sleep(0)
    # Only a loop that goes on comes here.
    blocked.released.set()
    await closing
    assert await future == "done"


async def test_what_outlasts_its_grace_is_left_behind(blocked: Blocked) -> None:
    threads = ThreadRunner(1)
    future = asyncio.ensure_future(threads.run_call(blocked))
    waiting = asyncio.ensure_future(threads.run_call(blocked))
    await begun(blocked)
    assert await threads.close(grace_s=0.01) == 1
    with pytest.raises(asyncio.CancelledError):
        await waiting
    future.cancel()
    blocked.released.set()


async def test_closed_threads_take_no_call() -> None:
    threads = ThreadRunner(1)
    await threads.close()
    with pytest.raises(RuntimeError, match="closed"):
        await threads.run_call(int)


async def test_a_call_that_nobody_waits_for_any_more_is_not_begun(blocked: Blocked) -> None:
    threads = ThreadRunner(1)
    future = asyncio.ensure_future(threads.run_call(blocked))
    await begun(blocked)
    given_up = asyncio.ensure_future(threads.run_call(blocked))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    blocked.released.set()
    await future
    assert await threads.run_call(int, "1") == 1
    assert blocked.count == 1
    await threads.close()


def test_a_process_ends_although_a_call_does_not() -> None:
    ended = subprocess.run(  # noqa: S603 - our own lines
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "1\nover\n"
