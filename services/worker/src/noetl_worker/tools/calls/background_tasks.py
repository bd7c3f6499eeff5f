"""Closes unused resources in the background."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class BackgroundTasks:
    """Bounded work that outlives the call that caused it, awaited when the tool closes.

    A task group would do the same, but it would also wrap every error of the code that runs
    while the tool is open.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

    def start_task(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start work that ends by itself."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_for_all(self) -> None:
        """Wait for everything that was started."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
