"""Tasks that run side by side and end together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def open_task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Open a task group that raises one failure as it is, instead of a group around it.

    It is the failure of the task that failed first, or the body's where no task failed. A caller
    can catch it by its class and needs no handling of exception groups.
    """
    failed: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as group_failure:
        failed = group_failure.exceptions[0]
    if failed is not None:
        # Raised here it keeps what it says about its own cause.
        raise failed
