"""Tasks that run side by side and end together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def open_task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Open a task group that raises one failure as it is, instead of a group around it.

    It is that of the task that failed first, or the body's where no task did. Whoever tells
    failures apart by their class needs to know of no group, nor of one in another.
    """
    failed: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as several:
        failed = several.exceptions[0]
    if failed is not None:
        # Raised here it keeps what it says about its own cause.
        raise failed
