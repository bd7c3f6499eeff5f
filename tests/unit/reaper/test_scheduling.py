"""Schedules under a clock that the test moves: policies, overlap, and looks of two leaders."""

from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs
from tests.support.manual_clock import ManualClock
from tests.support.storage import ORGANIZATION, TENANT

from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_contracts.requests.schedules import (
    CatchUp,
    Overlap,
    Schedule,
    SkippedTimes,
    SkipReason,
)
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.streams import topology
from noetl_reaper.sweeps.node_lease import NodeLease
from noetl_reaper.sweeps.scheduler import UNSEEN_S, Scheduler, SchedulerLimits
from noetl_storage.memory.leases import MemoryInstances
from noetl_storage.memory.projections import MemoryProjections
from noetl_storage.memory.store import MemoryStore
from noetl_storage.memory.triggers import MemorySchedules

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR_S = 3600.0
PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}


def a_schedule(**fields: Any) -> Schedule:
    values: dict[str, Any] = {
        "schedule_id": "7",
        **PLACE,
        "name": "hourly",
        "path": "demo/a",
        "cron": "0 * * * *",
        "next_at": NOON,
        "workload": {"region": "eu"},
    }
    return Schedule(**{**values, **fields})


class World:
    """Schedulers over one memory store."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOON)
        self.store = MemoryStore(clock=self.clock)
        self.schedules = MemorySchedules(self.store)
        self.projections = MemoryProjections(self.store)
        self.broker = MemoryBroker(topology.declare_topology(shard_count=1), self.clock)

    def scheduler(self, owner: str = "one") -> Scheduler:
        return Scheduler(
            schedules=self.schedules,
            projections=self.projections,
            hints=self.broker,
            clock=self.clock,
            numbers=NodeLease(
                MemoryInstances(self.store), owner=owner, lease_s=60, clock=self.clock
            ),
            limits=SchedulerLimits(schedules_max=10, routes=IngestRoutes(shard_count=1)),
        )

    def fired(self) -> list[str]:
        """The nominal times of all that was asked for, in order."""
        return [asked.workload["schedule"]["nominal_at"][11:16] for asked in self.asked()]

    def asked(self) -> list[ExecutionRequested]:
        return [
            fact
            for message in self.store.message_by_id.values()
            for fact in facts.decode_fact_batch(message.row.data).facts
            if isinstance(fact, ExecutionRequested)
        ]

    async def skips(self) -> list[SkippedTimes]:
        """What it passed over, newest first."""
        skips = await self.schedules.list_skipped_times(["7"], skips_max=100)
        return skips.get("7", [])

    async def kept(self) -> Schedule:
        schedule = await self.schedules.find_schedule("hourly", **PLACE)
        assert schedule is not None
        return schedule


async def test_a_due_schedule_asks_for_its_playbook_and_says_which_time_it_is_for() -> None:
    world = World()
    await world.schedules.put_schedule(a_schedule(version=3))
    world.clock.advance_by(1)
    await world.scheduler().fire_due()
    await world.scheduler().fire_due()
    (asked,) = world.asked()
    assert (asked.path, asked.version, asked.requested_by) == ("demo/a", 3, "schedule hourly")
    assert asked.workload == {
        "region": "eu",
        "schedule": {"name": "hourly", "nominal_at": "2026-01-01T12:00:00+00:00"},
    }
    kept = await world.kept()
    assert (kept.last_at, kept.next_at) == (NOON, NOON + timedelta(hours=1))


async def test_nothing_is_fired_before_its_time_or_while_it_is_paused() -> None:
    world = World()
    await world.schedules.put_schedule(a_schedule(next_at=NOON + timedelta(seconds=1)))
    await world.schedules.put_schedule(a_schedule(name="paused", is_enabled=False))
    await world.scheduler().fire_due()
    assert world.fired() == []


async def test_what_passed_while_nobody_looked_is_as_the_policy_says() -> None:
    expected = {
        CatchUp.SKIP: ["17:00"],
        CatchUp.LAST: ["17:00"],
        CatchUp.ALL: ["15:00", "16:00", "17:00"],
    }
    for policy, times in expected.items():
        world = World()
        await world.schedules.put_schedule(a_schedule(catch_up=policy, catch_up_max=3))
        world.clock.advance_by(5 * HOUR_S + 30)
        await world.scheduler().fire_due()
        assert world.fired() == times, policy
        kept = await world.kept()
        assert (kept.next_at, kept.skipped_count) == (NOON + timedelta(hours=6), 6 - len(times))
        (skip,) = await world.skips()
        assert (skip.first_at, skip.last_at) == (NOON, NOON + timedelta(hours=5 - len(times)))
        assert (skip.times, skip.is_exact) == (6 - len(times), True)
        assert (skip.reason, skip.skipped_at) == (SkipReason.CATCH_UP, world.clock.now())


async def test_skip_drops_even_the_last_time_when_it_is_long_past() -> None:
    world = World()
    await world.schedules.put_schedule(a_schedule(catch_up=CatchUp.SKIP))
    world.clock.advance_by(5 * HOUR_S + 120)
    await world.scheduler().fire_due()
    assert world.fired() == []
    assert (await world.kept()).next_at == NOON + timedelta(hours=6)


async def test_a_year_without_a_look_ends_in_the_most_recent_times() -> None:
    world = World()
    every_minute = a_schedule(cron="* * * * *", catch_up=CatchUp.ALL, catch_up_max=2)
    await world.schedules.put_schedule(every_minute)
    world.clock.advance_by(365 * 24 * HOUR_S)
    await world.scheduler().fire_due()
    assert world.fired() == ["11:59", "12:00"]
    (skip,) = await world.skips()
    assert (skip.first_at, skip.last_at) == (NOON, world.clock.now() - timedelta(minutes=2))
    assert not skip.is_exact, "a year of minutes is not counted"
    assert (await world.kept()).skipped_count == skip.times


async def test_the_last_time_passed_over_is_found_behind_as_many_as_may_be_fired() -> None:
    # Sixty minutes may be fired, and the first look back is as long.
    world = World()
    await world.schedules.put_schedule(
        a_schedule(cron="* * * * *", catch_up=CatchUp.ALL, catch_up_max=60)
    )
    world.clock.advance_by(2 * HOUR_S)
    await world.scheduler().fire_due()
    assert len(world.fired()) == 60
    (skip,) = await world.skips()
    assert (skip.last_at, skip.times) == (NOON + timedelta(minutes=60), 61)


async def test_an_overlap_is_skipped_until_the_execution_before_has_ended() -> None:
    world = World()
    await world.schedules.put_schedule(a_schedule(overlap=Overlap.SKIP))
    for _ in range(2):
        await world.scheduler().fire_due()
        world.clock.advance_by(UNSEEN_S / 2)
    world.clock.advance_by(1)
    begun = (await world.kept()).last_execution_id
    assert begun is not None
    row = {**PLACE, "execution_id": begun, "ended_at": None}
    await world.projections.apply_rows(
        shard=0, rows={"execution": [row]}, positions={begun: (0, 1)}
    )
    world.clock.advance_by(HOUR_S)
    await world.scheduler().fire_due()
    assert world.fired() == ["12:00"]
    newest, earlier = await world.skips()
    assert (newest.reason, newest.running_execution_id) == (SkipReason.OVERLAP, begun)
    assert newest.first_at == newest.last_at == NOON + timedelta(hours=2)
    assert (earlier.reason, earlier.first_at) == (SkipReason.CATCH_UP, NOON + timedelta(hours=1))
    assert (await world.kept()).skipped_count == 2
    ended = {**row, "ended_at": world.clock.now()}
    await world.projections.apply_rows(
        shard=0, rows={"execution": [ended]}, positions={begun: (1, 2)}
    )
    world.clock.advance_by(HOUR_S)
    await world.scheduler().fire_due()
    assert world.fired() == ["12:00", "15:00"]


async def test_an_execution_that_was_refused_does_not_block_its_schedule_for_good() -> None:
    world = World()
    await world.schedules.put_schedule(a_schedule(overlap=Overlap.SKIP))
    await world.scheduler().fire_due()
    world.clock.advance_by(2 * UNSEEN_S)
    await world.scheduler().fire_due()
    assert world.fired() == ["12:00", "14:00"]


async def test_two_leaders_that_read_the_same_fire_a_time_once() -> None:
    world = World()
    read = await world.schedules.put_schedule(a_schedule(catch_up=CatchUp.ALL))
    world.clock.advance_by(2 * HOUR_S)
    first, second = world.scheduler("one"), world.scheduler("two")
    await first.fire_due()
    # The second one acts on what it read before the first one fired.
    late = MemorySchedules(world.store)
    skipped = SkippedTimes(
        first_at=NOON, last_at=NOON, times=1, reason=SkipReason.OVERLAP, skipped_at=NOON
    )
    assert await late.skip_times(read, skipped, next_at=None) is False
    assert await world.skips() == []
    await second.fire_due()
    assert world.fired() == ["12:00", "13:00", "14:00"]


async def test_a_schedule_that_cannot_be_read_does_not_keep_the_others_from_firing() -> None:
    world = World()
    await world.schedules.put_schedule(
        a_schedule(name="a", schedule_id="8", timezone="Mars/Olympus")
    )
    await world.schedules.put_schedule(structs.replace(a_schedule(), schedule_id="9"))
    await world.scheduler().fire_due()
    assert world.fired() == ["12:00"]
