"""Which shards this planner owns: claimed, extended, rebalanced, given back."""

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

import structlog

from noetl_chassis import instruments, names
from noetl_chassis.loop import pump
from noetl_contracts.ledger import ShardFence, ShardLease
from noetl_storage.ports import Instances, ShardLeases

log = structlog.get_logger(__name__)


class Shard(Protocol):
    """What is done for a shard while it is owned."""

    async def turn(self) -> int:
        """Take on what there is; return how much it was."""

    async def close(self) -> None:
        """Leave the shard's messages to its next owner."""


class ShardOwner:
    """Keeps one task per owned shard; a lost lease ends its task before another can begin."""

    def __init__(
        self,
        *,
        leases: ShardLeases,
        instances: Instances,
        owner: str,
        lease_s: float,
        shard_count: int,
        open_shard: Callable[[ShardFence], Shard],
    ) -> None:
        self._leases = leases
        self._instances = instances
        self._owner = owner
        self._lease_s = lease_s
        self._shard_count = shard_count
        self._open_shard = open_shard
        self._running: dict[int, tuple[int, asyncio.Event, asyncio.Task[None]]] = {}
        # The latest task of each shard that was told to stop: its successor waits for it.
        self._leaving: dict[int, asyncio.Task[None]] = {}

    async def renew(self, tasks: asyncio.TaskGroup) -> int:
        """Extend what is held, claim up to the fair share, and match the tasks to it."""
        # A dead planner's share is divided among the others no later than its shards are free.
        await self._instances.register(instance=self._owner, kind="planner", lease_s=self._lease_s)
        await self._leases.extend(owner=self._owner, lease_s=self._lease_s)
        live = max(1, len(await self._instances.list_live("planner")))
        share = math.ceil(self._shard_count / live)
        held = await self._leases.claim(
            owner=self._owner,
            lease_s=self._lease_s,
            shards_max=share,
            shard_count=self._shard_count,
        )
        surplus = held[share:]
        if surplus:
            await self._stop([lease.shard for lease in surplus])
            await self._leases.release(owner=self._owner, shards=[lease.shard for lease in surplus])
        await self._match(held[:share], tasks)
        instruments.show(names.SHARDS_OWNED, len(self._running))
        return len(self._running)

    async def give_back(self) -> None:
        """Stop every task, then free the shards at once."""
        shards = list(self._running)
        await self._stop([*shards, *self._leaving])
        await self._leases.release(owner=self._owner, shards=shards)

    async def _match(self, held: list[ShardLease], tasks: asyncio.TaskGroup) -> None:
        epochs = {lease.shard: lease.epoch for lease in held}
        gone = [
            shard for shard, (epoch, _, _) in self._running.items() if epochs.get(shard) != epoch
        ]
        # Nobody but its successor waits for the turn of a lost lease, however long that takes:
        # whoever waited here would not extend what he has just claimed.
        self._dismiss(gone)
        for lease in held:
            if lease.shard not in self._running:
                self._begin(lease, tasks)

    def _begin(self, lease: ShardLease, tasks: asyncio.TaskGroup) -> None:
        fence = ShardFence(shard=lease.shard, owner=self._owner, epoch=lease.epoch)
        shard = self._open_shard(fence)
        stop = asyncio.Event()
        former = self._leaving.pop(lease.shard, None)

        async def run() -> None:
            if former is not None:
                await former
            try:
                await pump(shard.turn, idle_s=0.0, stop=stop, name=f"shard-{lease.shard}")
            finally:
                await shard.close()

        self._running[lease.shard] = (lease.epoch, stop, tasks.create_task(run()))
        log.info("shard taken", shard=lease.shard, epoch=lease.epoch)

    def _dismiss(self, shards: list[int]) -> None:
        """Tell the tasks of some shards to stop after their turn."""
        leaving = {shard: self._running.pop(shard) for shard in shards if shard in self._running}
        for shard, (_, stop, running) in leaving.items():
            stop.set()
            self._leaving[shard] = running
        if leaving:
            log.info("shards given back", shards=list(leaving))

    async def _stop(self, shards: list[int]) -> None:
        self._dismiss(shards)
        for shard in shards:
            if shard in self._leaving:
                await self._leaving.pop(shard)
