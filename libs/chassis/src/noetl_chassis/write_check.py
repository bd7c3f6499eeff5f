"""A readiness check that writes: a store that answers requests may still keep nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from noetl_chassis import loop
from noetl_chassis.lifecycle import ServiceProcess
from noetl_chassis.task_group import open_task_group
from noetl_contracts.errors import NoetlError, Retryable

INTERVAL_S = 60.0
TIMEOUT_S = 10.0


class WriteTimeout(Retryable):
    """A store did not finish a small write in time."""


class WriteCheck:
    """Remembers how the last write ended; `find_problem` is a readiness check."""

    def __init__(
        self, write: Callable[[], Awaitable[None]], *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._write = write
        self._timeout_s = timeout_s
        self._problem: str | None = "nothing was written yet"

    async def try_write(self) -> int:
        """Write once, and raise what went wrong; returns 0, as a turn of a loop without work."""
        try:
            await self._write_in_time()
        except NoetlError as failure:
            self._problem = str(failure)
            raise
        self._problem = None
        return 0

    def find_problem(self) -> str | None:
        """Say why the last write failed, or None."""
        return self._problem

    async def _write_in_time(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._write()
        except TimeoutError as failure:
            raise WriteTimeout(
                f"a small write did not end within {self._timeout_s:g} s"
            ) from failure


@asynccontextmanager
async def check_writes(
    write: Callable[[], Awaitable[None]],
    *,
    name: str,
    process: ServiceProcess,
    interval_s: float = INTERVAL_S,
) -> AsyncIterator[None]:
    """Count a store in for readiness while the block runs: write now, then every `interval_s`.

    After a failed write the next one follows within seconds.
    """
    check = WriteCheck(write)
    process.health.add_check(name, check.find_problem)
    async with open_task_group() as group:
        writing = loop.run_while_busy(
            check.try_write, idle_s=interval_s, stop=process.stop, name=f"{name} check"
        )
        task = group.create_task(writing)
        try:
            yield
        finally:
            task.cancel()
