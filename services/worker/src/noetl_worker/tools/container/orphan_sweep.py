"""Removes containers whose worker was killed, and those past their deadline."""

import asyncio
import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from noetl_chassis.clock import Clock
from noetl_storage.process import scratch
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.tools.container.runtime import ContainerRecord, ContainerRuntime

_INTERVAL_S = 30.0
_REMOVED_MAX = 100

log = structlog.get_logger(__name__)


def build_process_owner(folder: Path) -> str:
    """Name this process as the owner of containers, by a folder that it holds while it lives."""
    return f"{platform.node()}:{folder}"


class OrphanSweep:
    """Tells orphans from containers of workers that live."""

    def __init__(self, runtime: ContainerRuntime, *, owner: str, clock: Clock) -> None:
        self._runtime = runtime
        self._owner = owner
        self._clock = clock

    async def sweep_containers(self) -> int:
        """Remove orphans, return how many; raises `ToolFailure`."""
        removed_count = 0
        for record in await self._runtime.list_containers():
            if removed_count < _REMOVED_MAX and self._is_orphan(record):
                await self._runtime.remove_container(record.container_id, grace_s=0)
                log.info("container of an ended worker removed", container=record.name)
                removed_count += 1
        return removed_count

    def _is_orphan(self, record: ContainerRecord) -> bool:
        if record.deadline_s and record.deadline_s < self._clock.now().timestamp():
            return True
        if record.owner == self._owner:
            return False
        node, _, folder = record.owner.partition(":")
        # Of other machines nothing is known until the deadline.
        return bool(folder) and node == platform.node() and not scratch.is_folder_held(Path(folder))


@asynccontextmanager
async def hold_sweep(sweep: OrphanSweep) -> AsyncIterator[None]:
    """Sweep at once and again and again while the block runs."""
    sweeping = asyncio.ensure_future(_sweep_again_and_again(sweep))
    try:
        yield
    finally:
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)


async def _sweep_again_and_again(sweep: OrphanSweep) -> None:
    last_problem = ""
    while True:
        try:
            await sweep.sweep_containers()
            last_problem = ""
        except ToolFailure as problem:
            # A runtime that is away for long is told once.
            if problem.error.message != last_problem:
                last_problem = problem.error.message
                # A machine without Docker has no orphans either.
                tell = log.info if problem.error.kind == "config" else log.warning
                tell("orphan containers cannot be looked for", reason=last_problem)
        await asyncio.sleep(_INTERVAL_S)
