"""A tool that is opened by its first call: its libraries take 70 MiB and a second to load."""

import threading
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from noetl_chassis.blocking_work import run_in_thread
from noetl_worker.tools.calls.call import Call, Outcome


class KindTool(Protocol):
    """Runs the tasks of one kind."""

    def run(self, call: Call) -> Awaitable[Outcome]:
        """Run one attempt."""


T = TypeVar("T", bound=KindTool)


class DeferredTool(Generic[T]):
    """Stands for a tool until a task needs it; what failed to open is opened by the next task."""

    def __init__(self, open_tool: Callable[[], T]) -> None:
        self._open_tool = open_tool
        self._lock = threading.Lock()
        self._tool: T | None = None

    def open_once(self) -> T:
        """Return the tool; the first caller opens it and blocks meanwhile, as others do."""
        with self._lock:
            if self._tool is None:
                self._tool = self._open_tool()
            return self._tool

    def run(self, call: Call) -> Awaitable[Outcome]:
        """Run one attempt; the first one waits for a thread that opens the tool."""
        return self._run_first(call) if self._tool is None else self._tool.run(call)

    async def _run_first(self, call: Call) -> Outcome:
        # Leases are extended on the event loop meanwhile.
        tool = await run_in_thread(self.open_once)
        return await tool.run(call)
