"""Which shards this planner owns: claimed, extended, rebalanced, given back."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import structlog

from noetl_chassis.loop import LoopHealth, run_every, run_while_busy
from noetl_chassis.observability import instruments, names
from noetl_contracts.ledger.records import ShardFence, ShardLease
from noetl_planner.loops.queue import LANES, LoopQueue
from noetl_planner.shards.message_publisher import MessagePublisher
from noetl_storage.ports.ledger_ports import Instances, ShardLeases

log = structlog.get_logger(__name__)


class Shard(Protocol):
    """What is done for a shard, or a tenant's share of it, while it is owned."""

    async def run_turn(self) -> int:
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
        open_shard: Callable[[ShardFence], Sequence[Shard]],
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

    async def renew_leases(self, tasks: asyncio.TaskGroup) -> int:
        """Extend what is held, claim up to the fair share, and match the tasks to it."""
        # A dead planner's share is divided among the others no later than its shards are free.
        await self._instances.register_instance(
            instance=self._owner, kind="planner", lease_s=self._lease_s
        )
        await self._leases.extend_leases(owner=self._owner, lease_s=self._lease_s)
        live_planners = max(1, len(await self._instances.list_live_instances("planner")))
        share = math.ceil(self._shard_count / live_planners)
        shard_leases = await self._leases.claim_shards(
            owner=self._owner,
            lease_s=self._lease_s,
            shards_max=share,
            shard_count=self._shard_count,
        )
        surplus = shard_leases[share:]
        if surplus:
            await self._stop_shards([lease.shard for lease in surplus])
            await self._leases.release_shards(
                owner=self._owner, shards=[lease.shard for lease in surplus]
            )
        await self._match_tasks(shard_leases[:share], tasks)
        instruments.set_gauge(names.SHARDS_OWNED, len(self._running))
        return len(self._running)

    async def release_shards(self) -> None:
        """Stop every task, then free the shards at once."""
        shards = list(self._running)
        await self._stop_shards([*shards, *self._leaving])
        await self._leases.release_shards(owner=self._owner, shards=shards)

    async def _match_tasks(self, shard_leases: list[ShardLease], tasks: asyncio.TaskGroup) -> None:
        epochs = {lease.shard: lease.epoch for lease in shard_leases}
        gone = [
            shard for shard, (epoch, _, _) in self._running.items() if epochs.get(shard) != epoch
        ]
        # Only the successor waits for the turn of a lost lease, which may take long: waiting here
        # would delay the extension of the leases that were just claimed.
        self._stop_after_turn(gone)
        for lease in shard_leases:
            if lease.shard not in self._running:
                self._start_shard(lease, tasks)

    def _start_shard(self, lease: ShardLease, tasks: asyncio.TaskGroup) -> None:
        fence = ShardFence(shard=lease.shard, owner=self._owner, epoch=lease.epoch)
        shares = self._open_shard(fence)
        stop = asyncio.Event()
        former = self._leaving.pop(lease.shard, None)

        async def run_shard() -> None:
            if former is not None:
                await former
            async with asyncio.TaskGroup() as turns:
                for share in shares:
                    turns.create_task(_run_shard(share, stop, name=f"shard-{lease.shard}"))

        self._running[lease.shard] = (lease.epoch, stop, tasks.create_task(run_shard()))
        log.info("shard lease acquired", shard=lease.shard, epoch=lease.epoch)

    def _stop_after_turn(self, shards: list[int]) -> None:
        """Tell the tasks of some shards to stop after their turn."""
        leaving = {shard: self._running.pop(shard) for shard in shards if shard in self._running}
        for shard, (_, stop, running) in leaving.items():
            stop.set()
            self._leaving[shard] = running
        if leaving:
            log.info("shard leases released", shards=list(leaving))

    async def _stop_shards(self, shards: list[int]) -> None:
        self._stop_after_turn(shards)
        for shard in shards:
            if shard in self._leaving:
                await self._leaving.pop(shard)


async def _run_shard(shard: Shard, stop: asyncio.Event, *, name: str) -> None:
    try:
        await run_while_busy(shard.run_turn, idle_s=0.0, stop=stop, name=name)
    finally:
        await shard.close()


ServeRequests = Callable[[asyncio.Event], Awaitable[None]]


async def run_shards(
    *,
    owner: ShardOwner,
    publishing: MessagePublisher,
    gathering: LoopQueue,
    serve_requests: ServeRequests,
    renewal_s: float,
    loop_health: LoopHealth,
    stop: asyncio.Event,
) -> None:
    """Run until told to stop; shards are given back before the connections close."""
    async with asyncio.TaskGroup() as tasks:
        opened = tasks.create_task(_serve_until_stopped(serve_requests, stop))
        beside = [
            tasks.create_task(run_while_busy(turn, idle_s=0.0, stop=asyncio.Event(), name=name))
            for name, turn in [
                ("publishing", publishing.publish_waiting),
                *((f"gathering-{lane}", gathering.collect_next) for lane in range(LANES)),
            ]
        ]
        await run_every(
            renewal_s,
            partial(owner.renew_leases, tasks),
            stop=stop,
            name="shards",
            loop_health=loop_health,
        )
        await owner.release_shards()
        for task in beside:
            task.cancel()
        await opened


async def _serve_until_stopped(serve_requests: ServeRequests, stop: asyncio.Event) -> None:
    await serve_requests(stop)
