"""Over random crons, zones, crashes and rival leaders: each nominal time as the policy says."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise, takewhile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.manual_clock import ManualClock
from tests.support.storage import ORGANIZATION, TENANT

from noetl_contracts.errors import Retryable
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests import cron, facts
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_contracts.requests.schedules import CATCH_UP_MAX, CatchUp, Schedule
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.streams import topology
from noetl_reaper.sweeps.node_lease import NodeLease
from noetl_reaper.sweeps.scheduler import Scheduler, SchedulerLimits
from noetl_storage.memory.leases import MemoryInstances
from noetl_storage.memory.projections import MemoryProjections
from noetl_storage.memory.store import MemoryStore
from noetl_storage.memory.triggers import MemorySchedules

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
# Around the changes of the clocks in these zones.
STARTS = [datetime(2026, *day, tzinfo=UTC) for day in ((3, 7), (3, 28), (4, 4), (10, 24), (10, 31))]
HOURS = 72
# Of times no closer than ten minutes all looks together owe fewer than CATCH_UP_MAX: whoever
# dies, none is passed over for being one too many.
LOOKS_MAX = 25
LOOK_MINUTES_MAX = 300


class CrashError(Retryable):
    """The process dies here."""


class Frail(MemorySchedules):
    """Dies before or after it has moved a schedule on, as the test says."""

    def __init__(self, store: MemoryStore, crashes: list[str]) -> None:
        super().__init__(store)
        self.crashes = crashes

    async def fire_schedule(self, schedule: Schedule, **rest: Any) -> Any:
        crash = self.crashes.pop() if self.crashes else "none"
        if crash == "before":
            raise CrashError
        begun = await super().fire_schedule(schedule, **rest)
        if crash == "after":
            raise CrashError
        return begun


fields = st.tuples(
    st.sampled_from(["0", "30", "*/10", "15,45", "10-12"]),
    st.sampled_from(["*", "2", "*/2", "1-3", "0", "3,23"]),
    st.sampled_from(["*", "*", "*/2", "28-31"]),
)


looks_of_a_clock = st.lists(st.integers(1, LOOK_MINUTES_MAX), min_size=3, max_size=LOOKS_MAX)


def nominal_times(store: MemoryStore) -> list[datetime]:
    """The times of which executions were asked for, in the order of asking."""
    return [
        datetime.fromisoformat(fact.workload["schedule"]["nominal_at"])
        for message in store.message_by_id.values()
        for fact in facts.decode_fact_batch(message.row.data).facts
        if isinstance(fact, ExecutionRequested)
    ]


def times_between(expression: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    return list(
        takewhile(lambda time: time <= end, cron.iterate_due_times(expression, zone, start))
    )


@settings(max_examples=60)
@given(
    parts=fields,
    zone=st.sampled_from(ZONES),
    start=st.sampled_from(STARTS),
    looks=looks_of_a_clock,
    crashes=st.lists(st.sampled_from(["none", "before", "after"]), max_size=30),
    policy=st.sampled_from(list(CatchUp)),
)
def test_every_nominal_time_is_fired_once_or_as_the_policy_says(
    parts: tuple[str, str, str],
    zone: str,
    start: datetime,
    looks: list[int],
    crashes: list[str],
    policy: CatchUp,
) -> None:
    minute, hour, day = parts
    expression = f"{minute} {hour} {day} * *"
    clock = ManualClock(start)
    store = MemoryStore(clock=clock)
    asyncio.run(watch(store, clock, expression, zone, looks, list(crashes), policy, CATCH_UP_MAX))
    due = times_between(expression, zone, start, clock.now())
    fired = nominal_times(store)
    assert len(set(fired)) == len(fired), "no time is fired twice"
    assert fired == sorted(fired)
    assert set(fired) <= set(due), "nothing else is fired"
    skips = store.skips_by_schedule.get("7", [])
    told = {time for skip in skips for time in due if skip.first_at <= time <= skip.last_at}
    assert sorted({*fired, *told}) == due, "each time is fired or told of"
    assert not told & set(fired)
    for skip in skips:
        passed = [time for time in due if skip.first_at <= time <= skip.last_at]
        assert (passed[0], passed[-1]) == (skip.first_at, skip.last_at)
        assert skip.times <= len(passed)
        assert skip.times == len(passed) or not skip.is_exact
    if policy is CatchUp.ALL:
        assert fired == due
    elif policy is CatchUp.LAST:
        assert fired[-1:] == due[-1:]


@settings(max_examples=60)
@given(
    zone=st.sampled_from(ZONES),
    start=st.sampled_from(STARTS),
    looks=looks_of_a_clock,
    catch_up_max=st.integers(1, 40),
)
def test_of_more_times_than_may_be_caught_up_with_the_latest_are_fired(
    zone: str, start: datetime, looks: list[int], catch_up_max: int
) -> None:
    clock = ManualClock(start)
    store = MemoryStore(clock=clock)
    asyncio.run(watch(store, clock, "*/5 * * * *", zone, looks, [], CatchUp.ALL, catch_up_max))
    moments = [start + timedelta(minutes=minutes) for minutes in accumulate(looks, initial=0)]
    expected = [
        time
        for before, now in pairwise(moments)
        for time in times_between("*/5 * * * *", zone, before, now)[-catch_up_max:]
    ]
    assert nominal_times(store) == expected


async def watch(
    store: MemoryStore,
    clock: ManualClock,
    expression: str,
    zone: str,
    looks: list[int],
    crashes: list[str],
    policy: CatchUp,
    catch_up_max: int,
) -> None:
    """Look at the clock at odd times, by two rivals in turn, until nobody dies any more."""
    frail = Frail(store, crashes)
    await frail.put_schedule(
        Schedule(
            schedule_id="7",
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
            name="odd",
            path="demo/a",
            cron=expression,
            timezone=zone,
            catch_up=policy,
            catch_up_max=catch_up_max,
            next_at=next(cron.iterate_due_times(expression, zone, clock.now()), None),
        )
    )
    for turn, minutes in enumerate(looks):
        clock.advance_by(minutes * 60)
        await look(store, frail, clock, owner=f"rival-{turn % 2}")
    frail.crashes.clear()
    await look(store, frail, clock, owner="last")


async def look(store: MemoryStore, frail: Frail, clock: ManualClock, *, owner: str) -> None:
    scheduler = Scheduler(
        schedules=frail,
        projections=MemoryProjections(store),
        hints=MemoryBroker(topology.declare_topology(shard_count=1), clock),
        clock=clock,
        numbers=NodeLease(MemoryInstances(store), owner=owner, lease_s=60, clock=clock),
        limits=SchedulerLimits(schedules_max=10, routes=IngestRoutes(shard_count=1)),
    )
    try:
        await scheduler.fire_due()
    except CrashError:
        return


@settings(max_examples=80)
@given(
    parts=fields,
    zone=st.sampled_from(ZONES),
    start=st.sampled_from(STARTS),
    cut=st.integers(0, HOURS * 60),
)
def test_looking_again_from_any_moment_finds_the_same_times(
    parts: tuple[str, str, str], zone: str, start: datetime, cut: int
) -> None:
    minute, hour, day = parts
    expression = f"{minute} {hour} {day} * *"
    middle = start + timedelta(minutes=cut)
    through = cron.list_due_times(expression, zone, start, times_max=500)
    again = cron.list_due_times(expression, zone, middle, times_max=20)
    expected = [time for time in through if time > middle][:20]
    assert again[: len(expected)] == expected
