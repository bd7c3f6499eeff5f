"""Blocking work whose caller is cancelled."""

import asyncio
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from noetl_chassis.blocking_work import wait_until_ended


class Held:
    """Something that work has open."""


async def test_a_dropped_error_holds_nothing_that_its_work_had_open() -> None:
    has_begun, may_end = Event(), Event()
    seen: list[weakref.ref[Held]] = []

    def work() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        has_begun.set()
        may_end.wait()
        try:
            int("no number")
        except ValueError as first:
            raise OSError("no number") from first

    with ThreadPoolExecutor(1) as threads:
        running = asyncio.get_running_loop().run_in_executor(threads, work)
        waiting = asyncio.create_task(wait_until_ended(running, interrupt=may_end.set))
        await asyncio.to_thread(has_begun.wait)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert isinstance(running.exception(), OSError)
    assert [item() for item in seen] == [None]
