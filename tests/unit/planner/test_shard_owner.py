"""A planner that is slower than its leases goes on extending them, and its turns get shorter."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from tests.support.polling import eventually

from noetl_contracts.ledger.records import ShardFence
from noetl_messaging.streams.ports import Delivery
from noetl_planner.shards.adaptive_consumer import FIRST, TURN_S, AdaptiveConsumer
from noetl_planner.shards.shard_leases import ShardOwner
from noetl_storage.memory.leases import MemoryInstances, MemoryShardLeases
from noetl_storage.memory.store import MemoryStore

LEASE_S = 5.0
SHARDS = 2


@dataclass
class HandClock:
    """A clock that moves when it is told to."""

    at: datetime = field(default_factory=lambda: datetime(2026, 1, 1, tzinfo=UTC))

    def now(self) -> datetime:
        return self.at

    def monotonic_s(self) -> float:
        return self.at.timestamp()

    def pass_by(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


class Turns:
    """Turns of shards, each of which lasts until it is let go."""

    def __init__(self) -> None:
        self.running: list[ShardFence] = []
        self.together: int = 0
        self.closed: list[ShardFence] = []
        self.may_end = asyncio.Event()

    def open(self, fence: ShardFence) -> "Shard":
        return Shard(self, fence)

    def epochs(self) -> list[int]:
        return sorted(fence.epoch for fence in self.running)


@dataclass
class Shard:
    """One shard for as long as it is owned; closed after its last turn."""

    turns: Turns
    fence: ShardFence

    async def run_turn(self) -> int:
        running = self.turns.running
        mine = [item for item in running if item.shard == self.fence.shard]
        self.turns.together = max(self.turns.together, len(mine) + 1)
        running.append(self.fence)
        try:
            await self.turns.may_end.wait()
            await asyncio.sleep(0)
        finally:
            running.remove(self.fence)
        return 0

    async def close(self) -> None:
        assert self.fence not in self.turns.running
        self.turns.closed.append(self.fence)


@dataclass
class Stand:
    """One owner over leases in memory."""

    clock: HandClock
    turns: Turns
    leases: MemoryShardLeases
    owner: ShardOwner


def a_stand() -> Stand:
    clock, turns = HandClock(), Turns()
    store = MemoryStore(clock=clock)
    leases = MemoryShardLeases(store)
    owner = ShardOwner(
        leases=leases,
        instances=MemoryInstances(store),
        owner="planner-1",
        lease_s=LEASE_S,
        shard_count=SHARDS,
        open_shard=lambda fence: [turns.open(fence)],
    )
    return Stand(clock=clock, turns=turns, leases=leases, owner=owner)


async def _are(turns: Turns, epochs: list[int]) -> bool:
    return turns.epochs() == epochs


async def test_turns_that_outlast_a_lost_lease_do_not_cost_the_next_one() -> None:
    stand = a_stand()
    async with asyncio.TaskGroup() as tasks:
        await stand.owner.renew_leases(tasks)
        await eventually(lambda: _are(stand.turns, [1, 1]))
        stand.clock.pass_by(LEASE_S + 1)
        # The turns of the lost leases still run: what is claimed anew is extended all the same.
        for _ in range(5):
            await asyncio.wait_for(stand.owner.renew_leases(tasks), timeout=60)
            stand.clock.pass_by(LEASE_S - 1)
        held = await stand.leases.extend_leases(owner="planner-1", lease_s=LEASE_S)
        assert [lease.epoch for lease in held] == [2, 2]
        assert stand.turns.epochs() == [1, 1], "the successor begins after the former turn"
        stand.turns.may_end.set()
        await eventually(lambda: _are(stand.turns, [2, 2]))
        await stand.owner.release_shards()
    assert stand.turns.together == 1
    assert sorted(fence.epoch for fence in stand.turns.closed) == [1, 1, 2, 2]


async def test_a_successor_that_was_lost_before_it_began_never_begins() -> None:
    stand = a_stand()
    async with asyncio.TaskGroup() as tasks:
        await stand.owner.renew_leases(tasks)
        await eventually(lambda: _are(stand.turns, [1, 1]))
        for _ in range(3):
            stand.clock.pass_by(LEASE_S + 1)
            await stand.owner.renew_leases(tasks)
        assert stand.turns.epochs() == [1, 1]
        stand.turns.may_end.set()
        await eventually(lambda: _are(stand.turns, [4, 4]))
        await stand.owner.release_shards()
    assert stand.turns.together == 1


class Backlog:
    """A consumer that never runs dry, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def fetch_batch(self, *, messages_max: int, wait_s: float) -> list[Delivery]:
        assert wait_s > 0
        self.asked.append(messages_max)
        return cast("list[Delivery]", [None] * messages_max)

    def wake_fetch(self) -> None:
        self.asked.append(0)

    async def count_pending(self) -> tuple[int, int]:
        return 1, 0

    async def close(self) -> None:
        self.asked.clear()


@pytest.mark.parametrize(("each_s", "settled"), [(0.0001, 256), (0.05, 20), (10.0, 1)])
async def test_a_turn_takes_as_many_facts_as_it_settles_in_time(
    each_s: float, settled: int
) -> None:
    clock, backlog = HandClock(), Backlog()
    paced = AdaptiveConsumer(cast("Any", backlog), cast("Any", clock))
    for _ in range(20):
        found = await paced.fetch_batch(messages_max=256, wait_s=1)
        clock.pass_by(len(found) * each_s)
    assert backlog.asked[0] == FIRST
    lasted = [taken * each_s for taken in backlog.asked[5:]]
    assert settled / 2 <= backlog.asked[-1] <= settled * 2
    assert max(lasted) <= max(2 * TURN_S, each_s)


async def test_a_turn_with_little_to_do_says_nothing_of_the_pace() -> None:
    clock = HandClock()

    class Idle(Backlog):
        async def fetch_batch(self, *, messages_max: int, wait_s: float) -> list[Delivery]:
            return (await super().fetch_batch(messages_max=messages_max, wait_s=wait_s))[:1]

    idle = Idle()
    paced = AdaptiveConsumer(cast("Any", idle), cast("Any", clock))
    for _ in range(10):
        await paced.fetch_batch(messages_max=256, wait_s=1)
        clock.pass_by(0.01)
    assert set(idle.asked) == {FIRST}
    assert await paced.count_pending() == (1, 0)
    await paced.close()
    assert idle.asked == []
