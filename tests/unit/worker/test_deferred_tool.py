"""Tools that are opened by their first task."""

import asyncio
import threading
from typing import Any, cast

import pytest

from noetl_worker.tools.calls.call import Call, Outcome
from noetl_worker.tools.deferred_tool import DeferredTool

CALL = cast("Call", None)


class Named:
    """A tool that returns its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def run(self, call: Call) -> Outcome:
        del call
        return Outcome(data=self.number)


async def test_the_first_tasks_open_a_tool_once_and_not_on_the_event_loop() -> None:
    opened_in: list[threading.Thread] = []
    is_loop_free = threading.Event()

    def open_tool() -> Named:
        opened_in.append(threading.current_thread())
        # A loop that were blocked here would never set it.
        assert is_loop_free.wait(10)
        return Named(len(opened_in))

    tool = DeferredTool(open_tool)
    running = [asyncio.ensure_future(tool.run(CALL)) for _ in range(3)]
    await asyncio.sleep(0)
    is_loop_free.set()
    outcomes: list[Any] = await asyncio.gather(*running, tool.run(CALL))
    assert [outcome.data for outcome in outcomes] == [1, 1, 1, 1]
    assert opened_in != [threading.current_thread()]
    assert len(opened_in) == 1


async def test_a_tool_that_did_not_open_is_opened_by_the_next_task() -> None:
    failures = [ImportError("no such library")]

    def open_tool() -> Named:
        if failures:
            raise failures.pop()
        return Named(7)

    tool = DeferredTool(open_tool)
    with pytest.raises(ImportError, match="no such library"):
        await tool.run(CALL)
    assert (await tool.run(CALL)).data == 7
