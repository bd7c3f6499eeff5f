"""The tiers in front of a worker's payload store, and the sweep of its node's shared memory.

A worker sweeps, not the reaper: the reaper runs once in a cluster and sees the memory of one node
at most, while wherever segments are made there is a worker.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import structlog

from noetl_chassis import instruments, loop, names
from noetl_chassis.clock import Clock
from noetl_chassis.settings import locality_of
from noetl_storage.errors import StorageMisconfigured
from noetl_storage.ports import Payloads
from noetl_storage.tier_ports import TierName
from noetl_storage.tiers import room
from noetl_storage.tiers.disk import DiskTier
from noetl_storage.tiers.reader import TieredPayloads
from noetl_storage.tiers.room import RoomRefused
from noetl_storage.tiers.shared import SharedTier
from noetl_worker.settings import Settings

log = structlog.get_logger(__name__)


class Metrics:
    """Counts what the reader tells."""

    def was_read(self, tier: TierName, *, is_hit: bool, count_bytes: int) -> None:
        """Note that a tier was asked, and how many bytes it gave."""
        outcome = "hit" if is_hit else "miss"
        instruments.count(
            names.STORAGE_READS, labels={names.TIER: tier.value, names.OUTCOME: outcome}
        )
        if count_bytes:
            labels = {names.TIER: tier.value, names.OPERATION: "read"}
            instruments.count(names.PAYLOAD_BYTES, count_bytes, labels=labels)

    def was_kept(self, tier: TierName, *, is_kept: bool, used_bytes: int) -> None:
        """Note that a tier was offered a copy, and how many bytes it holds now."""
        outcome = "kept" if is_kept else "refused"
        instruments.count(
            names.STORAGE_ADMISSIONS, labels={names.TIER: tier.value, names.OUTCOME: outcome}
        )
        instruments.show(names.STORAGE_TIER_BYTES, used_bytes, labels={names.TIER: tier.value})

    def was_swept(self, reason: str, segments: int) -> None:
        """Note that a sweep removed segments."""
        instruments.count(names.STORAGE_SWEPT, segments, labels={names.REASON: reason})


@asynccontextmanager
async def open_tiers(
    config: Settings, payloads: Payloads, clock: Clock
) -> AsyncIterator[TieredPayloads]:
    """Put the tiers that the settings want in front of a store; sweep as long as the block runs.

    A tier that cannot be opened is left out, with a warning: the store has everything. Raises
    `StorageMisconfigured` where the settings contradict each other.
    """
    metrics, stop = Metrics(), asyncio.Event()
    disk = await asyncio.to_thread(_open_disk, config)
    async with AsyncExitStack() as stack:
        shared = _open_shared(config, clock)
        if shared is not None:
            stack.callback(shared.close)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            stack.callback(stop.set)
            _show(await asyncio.to_thread(shared.sweep), shared, metrics)
            tasks.create_task(
                loop.every(
                    config.shared_sweep_s,
                    lambda: _tend(shared, metrics, config.shared_sweep_s),
                    stop=stop,
                    name="shared sweep",
                )
            )
        yield TieredPayloads(payloads, watch=metrics, shared=shared, disk=disk)


async def _tend(shared: SharedTier, metrics: Metrics, interval_s: float) -> None:
    gone = await asyncio.to_thread(lambda: shared.tend(interval_s=interval_s))
    _show(gone, shared, metrics)


def _show(gone: Counter[str], shared: SharedTier, metrics: Metrics) -> None:
    for reason, segments in gone.items():
        metrics.was_swept(reason, segments)
    used = shared.used_bytes()
    instruments.show(names.STORAGE_TIER_BYTES, used, labels={names.TIER: shared.name.value})


def _open_shared(config: Settings, clock: Clock) -> SharedTier | None:
    if not config.shared_bytes:
        return None
    try:
        return SharedTier(
            room.open_room(Path(config.shared_directory), store_url=config.payload_url),
            node_id=locality_of(config)["node"],
            bytes_max=config.shared_bytes,
            lease_s=config.lease_s,
            clock=clock,
        )
    except RoomRefused as problem:
        log.warning("shared memory is not used", reason=str(problem))
        return None


def _open_disk(config: Settings) -> DiskTier | None:
    if not config.disk_cache_bytes:
        return None
    if not config.disk_cache_directory:
        raise StorageMisconfigured(
            "DISK_CACHE_BYTES wants a disk cache: say where, with DISK_CACHE_DIRECTORY"
        )
    try:
        return DiskTier(
            Path(config.disk_cache_directory),
            store_url=config.payload_url,
            bytes_max=config.disk_cache_bytes,
        )
    except RoomRefused as problem:
        log.warning("the disk cache is not used", reason=str(problem))
        return None
