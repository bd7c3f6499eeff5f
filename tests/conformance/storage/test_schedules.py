"""Schedules over every adapter: one firing of a time, whoever looks, whatever changes meanwhile."""

import asyncio
import secrets
from datetime import timedelta
from typing import Any

from msgspec import structs
from tests.support.storage import NOON, ORGANIZATION, TENANT, Stores, an_execution

from noetl_contracts.identity.quotas import TenantQuota
from noetl_contracts.ids import ExecutionId, TenantId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.ledger.records import Request
from noetl_contracts.requests import schedules
from noetl_contracts.requests.schedules import (
    CatchUp,
    Overlap,
    Schedule,
    SkippedTimes,
    SkipReason,
)

PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
HOUR = timedelta(hours=1)


def a_schedule(name: str = "hourly", **fields: Any) -> Schedule:
    values: dict[str, Any] = {
        "schedule_id": str(secrets.randbits(60)),
        **PLACE,
        "name": name,
        "path": "demo/a",
        "cron": "0 * * * *",
        "next_at": NOON,
    }
    return Schedule(**{**values, **fields})


def a_firing(schedule: Schedule) -> Request:
    return schedules.build_firing_request(
        schedule,
        NOON,
        execution_id=an_execution(),
        routes=IngestRoutes(shard_count=4),
        producer="test",
    )


async def fire(stores: Stores, schedule: Schedule) -> ExecutionId | None:
    return await stores.schedules.fire_schedule(
        schedule, nominal_at=NOON, next_at=NOON + HOUR, request=a_firing(schedule)
    )


def a_skip(hour: int = 0, **fields: Any) -> SkippedTimes:
    """One time passed over, so many hours after noon."""
    nominal_at = NOON + hour * HOUR
    values: dict[str, Any] = {
        "first_at": nominal_at,
        "last_at": nominal_at,
        "times": 1,
        "reason": SkipReason.CATCH_UP,
        "skipped_at": nominal_at,
    }
    return SkippedTimes(**{**values, **fields})


async def skip_hour(stores: Stores, skip: SkippedTimes) -> bool:
    """Pass over what is due of the hourly schedule, as a scheduler that has just read it."""
    read = await stores.schedules.find_schedule("hourly", **PLACE)
    assert read is not None
    return await stores.schedules.skip_times(read, skip, next_at=skip.last_at + HOUR)


async def list_skips(stores: Stores, *schedules: Schedule, skips_max: int = 100) -> Any:
    return await stores.schedules.list_skipped_times(
        [schedule.schedule_id for schedule in schedules], skips_max=skips_max
    )


async def test_a_schedule_is_kept_as_it_was_given(stores: Stores) -> None:
    schedule = a_schedule(
        version=3,
        workload={"region": "eu", "n": [1, 2.5, None]},
        timezone="Europe/Berlin",
        catch_up=CatchUp.ALL,
        catch_up_max=7,
        overlap=Overlap.SKIP,
    )
    assert await stores.schedules.put_schedule(schedule) == schedule
    assert await stores.schedules.find_schedule("hourly", **PLACE) == schedule
    assert await stores.schedules.find_schedule("hourly", tenant_id=TenantId("x"), **_org()) is None
    assert await stores.schedules.find_schedule("daily", **PLACE) is None


async def test_one_that_is_put_again_keeps_its_identity_and_its_past(stores: Stores) -> None:
    first = await stores.schedules.put_schedule(a_schedule())
    begun = await fire(stores, first)
    second = await stores.schedules.put_schedule(a_schedule(cron="5 * * * *"))
    assert (second.schedule_id, second.revision) == (first.schedule_id, 2)
    assert (second.last_at, second.last_execution_id) == (NOON, begun)
    assert second.cron == "5 * * * *"


async def test_a_time_is_fired_once_and_with_its_request(stores: Stores) -> None:
    schedule = await stores.schedules.put_schedule(a_schedule())
    answers = await asyncio.gather(*[fire(stores, schedule) for _ in range(4)])
    (begun,) = [answer for answer in answers if answer is not None]
    assert await stores.requests.find_request(f"execute-{begun}") is not None
    assert (await stores.outbox.count_backlog())[0] == 1
    after = await stores.schedules.find_schedule("hourly", **PLACE)
    assert after is not None
    assert (after.next_at, after.last_at, after.last_execution_id) == (NOON + HOUR, NOON, begun)


async def test_the_same_time_of_the_same_schedule_is_the_same_execution(stores: Stores) -> None:
    schedule = await stores.schedules.put_schedule(a_schedule())
    begun = await fire(stores, schedule)
    again = await stores.schedules.put_schedule(a_schedule())
    assert await fire(stores, again) == begun
    assert (await stores.outbox.count_backlog())[0] == 1


async def test_what_was_changed_after_it_was_read_is_not_fired(stores: Stores) -> None:
    read = await stores.schedules.put_schedule(a_schedule())
    assert await stores.schedules.switch_schedule(structs.replace(read, is_enabled=False))
    assert await fire(stores, read) is None
    assert not await stores.schedules.skip_times(read, a_skip(), next_at=NOON + HOUR)
    assert await list_skips(stores, read) == {}
    assert not await stores.schedules.switch_schedule(read), "its revision has moved on"
    paused = await stores.schedules.find_schedule("hourly", **PLACE)
    assert paused is not None
    assert not paused.is_enabled
    assert (await stores.outbox.count_backlog())[0] == 0


async def test_a_time_that_is_passed_over_is_not_fired(stores: Stores) -> None:
    read = await stores.schedules.put_schedule(a_schedule())
    assert await stores.schedules.skip_times(read, a_skip(), next_at=NOON + HOUR)
    assert not await stores.schedules.skip_times(read, a_skip(), next_at=NOON + HOUR)
    assert await fire(stores, read) is None
    after = await stores.schedules.find_schedule("hourly", **PLACE)
    assert after is not None
    assert (after.next_at, after.last_at, after.skipped_count) == (NOON + HOUR, None, 1)
    assert await list_skips(stores, read) == {read.schedule_id: [a_skip()]}


async def test_times_that_one_execution_held_up_share_a_record(stores: Stores) -> None:
    kept = await stores.schedules.put_schedule(a_schedule())
    first, second = an_execution(), an_execution()
    held_up: dict[str, Any] = {"reason": SkipReason.OVERLAP, "running_execution_id": first}
    many = a_skip(0, last_at=NOON + HOUR, times=30, is_exact=False)
    for skip in (many, a_skip(2, **held_up), a_skip(3, **held_up), a_skip(4, **held_up)):
        assert await skip_hour(stores, skip)
    other = a_skip(5, reason=SkipReason.OVERLAP, running_execution_id=second)
    assert await skip_hour(stores, other)
    together = a_skip(2, last_at=NOON + 4 * HOUR, times=3, skipped_at=NOON + 4 * HOUR, **held_up)
    assert await list_skips(stores, kept) == {kept.schedule_id: [other, together, many]}
    assert await list_skips(stores, kept, skips_max=1) == {kept.schedule_id: [other]}
    assert await list_skips(stores, kept, skips_max=0) == {}
    again = await stores.schedules.put_schedule(a_schedule(cron="5 * * * *"))
    assert again.skipped_count == 34, "who puts it again keeps what it passed over"


async def test_a_time_that_comes_twice_by_a_clock_set_back_is_told_of_once(
    stores: Stores,
) -> None:
    kept = await stores.schedules.put_schedule(a_schedule())
    assert await skip_hour(stores, a_skip())
    await stores.schedules.put_schedule(a_schedule())
    again = a_skip(reason=SkipReason.OVERLAP, running_execution_id=an_execution())
    assert await skip_hour(stores, again)
    assert await list_skips(stores, kept) == {kept.schedule_id: [again]}


async def test_the_newest_hundred_records_are_kept_and_go_with_the_schedule(
    stores: Stores,
) -> None:
    kept = await stores.schedules.put_schedule(a_schedule())
    other = await stores.schedules.put_schedule(a_schedule("other"))
    assert await stores.schedules.skip_times(other, a_skip(), next_at=NOON + HOUR)
    for hour in range(103):
        assert await skip_hour(stores, a_skip(hour))
    skips = (await list_skips(stores, kept, other, skips_max=1000))[kept.schedule_id]
    assert [skip.first_at for skip in skips] == [NOON + n * HOUR for n in range(102, 2, -1)]
    after = await stores.schedules.find_schedule("hourly", **PLACE)
    assert after is not None
    assert after.skipped_count == 103
    assert await stores.schedules.remove_schedule("hourly", **PLACE)
    assert await list_skips(stores, kept, other) == {other.schedule_id: [a_skip()]}


async def test_schedules_of_a_suspended_tenant_wait(stores: Stores) -> None:
    await stores.schedules.put_schedule(a_schedule())
    other = a_schedule("others", tenant_id=TenantId("other"))
    await stores.schedules.put_schedule(other)

    async def list_due() -> list[str]:
        due = await stores.schedules.list_due_schedules(now=NOON, schedules_max=9)
        return sorted(schedule.name for schedule in due)

    await stores.quotas.put_quota(TenantQuota(tenant_id=TENANT, is_suspended=True))
    assert await list_due() == ["others"]
    await stores.quotas.put_quota(TenantQuota(tenant_id=TENANT, running_max=1))
    assert await list_due() == ["hourly", "others"]


async def test_the_longest_due_come_first_and_only_enabled_ones(stores: Stores) -> None:
    await stores.schedules.put_schedule(a_schedule("late", next_at=NOON))
    await stores.schedules.put_schedule(a_schedule("later", next_at=NOON - HOUR))
    await stores.schedules.put_schedule(a_schedule("paused", is_enabled=False))
    await stores.schedules.put_schedule(a_schedule("ended", next_at=None))
    await stores.schedules.put_schedule(a_schedule("to come", next_at=NOON + HOUR))
    due = await stores.schedules.list_due_schedules(now=NOON, schedules_max=9)
    assert [item.name for item in due] == ["later", "late"]
    assert len(await stores.schedules.list_due_schedules(now=NOON, schedules_max=1)) == 1


async def test_schedules_are_listed_by_name_and_removed(stores: Stores) -> None:
    for name in ("b", "a", "C"):
        await stores.schedules.put_schedule(a_schedule(name))
    await stores.schedules.put_schedule(a_schedule("theirs", tenant_id=TenantId("x")))
    listed = await stores.schedules.list_schedules(**PLACE, schedules_max=9)
    assert [item.name for item in listed] == ["C", "a", "b"]
    assert await stores.schedules.remove_schedule("b", **PLACE)
    assert not await stores.schedules.remove_schedule("b", **PLACE)
    assert len(await stores.schedules.list_schedules(**PLACE, schedules_max=9)) == 2


def _org() -> dict[str, Any]:
    return {"organization_id": ORGANIZATION}
