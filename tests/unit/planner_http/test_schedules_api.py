"""Schedules over HTTP: kept, refused, paused, run by hand."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import PLAYBOOK, ApiWorld

from noetl_chassis.clock import SystemClock
from noetl_contracts.ids import ExecutionId
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_contracts.requests.schedules import SkippedTimes, SkipReason
from noetl_planner.api.app import create_app
from noetl_storage.memory.triggers import MemorySchedules

Api = AsyncTestClient[Litestar]
DAILY: dict[str, Any] = {
    "path": "demo/hello",
    "cron": "30 6  * * *",
    "timezone": "Europe/Berlin",
    "workload": {"who": "you"},
}


@pytest.fixture
async def hello(api: Api) -> Api:
    answer = await api.post(
        "/api/catalog/register", content=PLAYBOOK, headers={"Content-Type": "text/yaml"}
    )
    assert answer.is_success, answer.text
    return api


async def test_a_schedule_is_kept_and_shows_the_times_to_come(hello: Api) -> None:
    kept = (await hello.put("/api/schedules/daily", json=DAILY)).json()
    assert (kept["cron"], kept["catch_up"], kept["enabled"]) == ("30 6 * * *", "last", True)
    shown = (await hello.get("/api/schedules/daily")).json()
    assert len(shown["next"]) == 5
    assert shown["next"][0] == shown["next_at"]
    assert {moment[13:19] for moment in shown["next"]} == {":30:00"}
    listed = (await hello.get("/api/schedules")).json()["schedules"]
    assert [item["name"] for item in listed] == ["daily"]
    assert [(item["next"], item["missed"]) for item in listed] == [(shown["next"], [])]


class AheadClock(SystemClock):
    """A clock that is ahead of what schedules were put at."""

    def now(self) -> datetime:
        return super().now() + timedelta(days=3, minutes=2)


async def test_times_that_passed_without_a_firing_are_told_by_the_servers_clock(
    hello: Api, world: ApiWorld
) -> None:
    hourly = {"path": "demo/hello", "cron": "0 * * * *"}
    daily = {**hourly, "cron": "30 6 * * *"}
    for name, body in {"hourly": hourly, "daily": daily, "paused": hourly}.items():
        assert (await hello.put(f"/api/schedules/{name}", json=body)).is_success
    await hello.post("/api/schedules/paused/pause")
    app = create_app(world.services(clock=AheadClock()))
    async with AsyncTestClient(app) as later:
        answer = (await later.get("/api/schedules")).json()
        shown = (await later.get("/api/schedules/hourly")).json()
    by_name = {item["name"]: item for item in answer["schedules"]}
    read_at = datetime.fromisoformat(answer["read_at"])
    of_hours, of_days = by_name["hourly"], by_name["daily"]
    assert of_hours["missed"][0] == of_hours["next_at"]
    assert (len(of_hours["missed"]), of_hours["has_more_missed"]) == (5, True)
    assert (len(of_days["missed"]), of_days["has_more_missed"]) == (3, False)
    assert (by_name["paused"]["missed"], by_name["paused"]["next"]) == ([], [])
    assert all(datetime.fromisoformat(time) < read_at for time in of_days["missed"])
    assert all(datetime.fromisoformat(time) > read_at for time in of_hours["next"])
    assert (shown["missed"], shown["has_more_missed"]) == (of_hours["missed"], True)


async def test_times_that_its_rules_passed_over_are_told_with_the_reason(
    hello: Api, world: ApiWorld
) -> None:
    await hello.put("/api/schedules/daily", json=DAILY)
    await hello.put("/api/schedules/other", json=DAILY)
    schedules = MemorySchedules(world.store)
    for day in range(7):
        daily = next(item for key, item in world.store.schedule_by_place.items() if "daily" in key)
        assert daily.next_at is not None
        skip = SkippedTimes(
            first_at=daily.next_at,
            last_at=daily.next_at,
            times=1,
            reason=SkipReason.OVERLAP,
            running_execution_id=ExecutionId(str(day)),
            skipped_at=daily.next_at,
        )
        assert await schedules.skip_times(daily, skip, next_at=daily.next_at + timedelta(days=1))
    listed = (await hello.get("/api/schedules")).json()["schedules"]
    assert [(len(item["skipped"]), item["skipped_count"]) for item in listed] == [(5, 7), (0, 0)]
    newest = listed[0]["skipped"][0]
    assert (newest["reason"], newest["running_execution_id"]) == ("overlap", "6")
    assert (newest["times"], newest["first_at"]) == (1, newest["last_at"])
    shown = (await hello.get("/api/schedules/daily?skips=100")).json()
    assert [skip["running_execution_id"] for skip in shown["skipped"]] == list("6543210")
    assert (await hello.get("/api/schedules/daily?skips=0")).json()["skipped"] == []
    assert (await hello.get("/api/schedules/daily?skips=101")).status_code == 400


async def test_posting_a_name_that_is_taken_is_a_conflict(hello: Api) -> None:
    assert (await hello.post("/api/schedules", json={"name": "daily", **DAILY})).status_code == 200
    again = await hello.post("/api/schedules", json={"name": "daily", **DAILY})
    assert (again.status_code, again.json()["code"]) == (409, "schedule_exists")


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"cron": "99 * * * *"}, 422, "bad minute"),
        ({"cron": "* * * * * *"}, 422, "five fields"),
        ({"timezone": "Mars/Olympus"}, 422, "time zone"),
        ({"path": "demo/helo"}, 404, "demo/helo"),
        ({"version": 9}, 404, "version 9"),
        ({"catch_up": "some"}, 400, "catch_up"),
        ({"catch_up_max": 0}, 400, "catch_up_max"),
        ({"workload": {"schedule": 1}}, 400, "schedule"),
        ({"workload": {"big": "x" * 70_000}}, 413, "workload"),
        ({"every": "day"}, 400, "every"),
    ],
)
async def test_wrong_schedules_are_refused_with_the_place(
    hello: Api, change: dict[str, Any], status: int, says: str
) -> None:
    answer = await hello.put("/api/schedules/daily", json={**DAILY, **change})
    assert answer.status_code == status, answer.text
    assert says in answer.text
    assert (await hello.get("/api/schedules/daily")).status_code == 404


async def test_a_time_zone_that_is_none_is_told_without_the_cron_fields(hello: Api) -> None:
    answer = await hello.put("/api/schedules/daily", json={**DAILY, "timezone": "Mars/Olympus"})
    said = answer.json()
    assert said["hint"] == "--timezone Europe/Berlin, or leave it out for UTC"
    assert "cron" not in said["detail"]


async def test_a_name_that_is_none_is_refused_and_an_unknown_one_is_not_found(hello: Api) -> None:
    assert (await hello.put("/api/schedules/-x", json=DAILY)).status_code == 400
    await hello.put("/api/schedules/daily", json=DAILY)
    unknown = await hello.get("/api/schedules/dayly")
    assert unknown.status_code == 404
    assert "daily" in unknown.json()["hint"]


async def test_pausing_takes_the_next_time_away_and_resuming_sets_it_again(hello: Api) -> None:
    kept = (await hello.put("/api/schedules/daily", json=DAILY)).json()
    for _ in range(2):
        paused = (await hello.post("/api/schedules/daily/pause")).json()
        assert (paused["enabled"], paused["next_at"]) == (False, None)
    assert (await hello.get("/api/schedules/daily")).json()["next"] == []
    resumed = (await hello.post("/api/schedules/daily/resume")).json()
    assert (resumed["enabled"], resumed["next_at"]) == (True, kept["next_at"])


async def test_running_one_by_hand_is_an_execution_beside_its_times(
    hello: Api, world: ApiWorld
) -> None:
    kept = (await hello.put("/api/schedules/daily", json=DAILY)).json()
    for _ in range(2):
        answer = await hello.post("/api/schedules/daily/run", headers={"Idempotency-Key": "once"})
        assert answer.status_code == 202, answer.text
    (asked,) = [
        fact
        for message in world.store.message_by_id.values()
        for fact in facts.decode_fact_batch(message.row.data).facts
        if isinstance(fact, ExecutionRequested)
    ]
    assert (asked.path, asked.requested_by) == ("demo/hello", "schedule daily")
    assert asked.workload["who"] == "you"
    assert asked.workload["schedule"]["name"] == "daily"
    assert (await hello.get("/api/schedules/daily")).json()["next_at"] == kept["next_at"]


async def test_a_removed_schedule_is_gone(hello: Api) -> None:
    await hello.put("/api/schedules/daily", json=DAILY)
    assert (await hello.delete("/api/schedules/daily")).json() == {"name": "daily", "removed": True}
    assert (await hello.delete("/api/schedules/daily")).status_code == 404
