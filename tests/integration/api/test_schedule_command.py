"""`noetl schedule` against a planner's API."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support.api import PLAYBOOK
from tests.support.running_api import Noetl, RunningApi

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.requests.schedules import SkippedTimes, SkipReason
from noetl_storage.memory.triggers import MemorySchedules

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_schedule_is_put_shown_held_run_and_removed(noetl: Noetl, tmp_path: Path) -> None:
    file = tmp_path / "hello.yaml"
    file.write_text(PLAYBOOK)
    assert noetl("register", str(file)).code == 0
    asked = ("daily", "demo/hello", "--cron", "30 6 * * *", "--timezone", "Europe/Berlin")
    put = noetl("schedule", "put", *asked, "--set", "who=you", "--overlap", "skip")
    assert put.code == 0, put.err
    assert "daily: demo/hello at 30 6 * * * (Europe/Berlin), next 20" in put.out
    shown = codec.decode_json(noetl("schedule", "show", "daily", "--json").out)
    assert (shown["overlap"], shown["workload"], len(shown["next"])) == ("skip", {"who": "you"}, 5)
    assert len(noetl("schedule", "show", "daily", "-n", "3").out.splitlines()) == 4
    assert "paused" in noetl("schedule", "pause", "daily").out
    assert "paused" in noetl("schedule", "ls").out
    assert "next 20" in noetl("schedule", "resume", "daily").out
    assert noetl("schedule", "run", "daily").out.strip().isdigit()
    assert "is removed" in noetl("schedule", "rm", "daily").out
    assert "No schedules" in noetl("schedule", "ls").err


def test_what_a_schedule_left_out_is_shown_with_the_rule(
    noetl: Noetl, running_api: RunningApi, tmp_path: Path
) -> None:
    file = tmp_path / "hello.yaml"
    file.write_text(PLAYBOOK)
    noetl("register", str(file))
    noetl("schedule", "put", "daily", "demo/hello", "--cron", "0 * * * *", "--set", "who=you")

    async def skip(hour: int, reason: SkipReason, times: int, running: str | None) -> None:
        (daily,) = running_api.world.store.schedule_by_place.values()
        first_at = NOON + timedelta(hours=hour)
        skipped = SkippedTimes(
            first_at=first_at,
            last_at=first_at + timedelta(hours=times - 1),
            times=times,
            is_exact=times < 5,
            reason=reason,
            running_execution_id=None if running is None else ExecutionId(running),
            skipped_at=first_at,
        )
        schedules = MemorySchedules(running_api.world.store)
        assert await schedules.skip_times(daily, skipped, next_at=daily.next_at)

    running_api.call(skip, 0, SkipReason.CATCH_UP, 5, None)
    running_api.call(skip, 5, SkipReason.OVERLAP, 1, "77")
    lines = noetl("schedule", "show", "daily", "-n", "0").out.splitlines()
    assert lines[1:] == [
        "  6 skipped so far",
        "  2026-01-01 12:00 to 2026-01-01 16:00 UTC at least 5 skipped: catch-up rule",
        "  2026-01-01 17:00 UTC skipped: 77 still ran",
    ]
    assert len(noetl("schedule", "show", "daily", "-n", "0", "--skips", "1").out.splitlines()) == 3
    listed = noetl("schedule", "ls").out.splitlines()
    assert (listed[0].split()[-1], listed[1].split()[-1]) == ("SKIPPED", "6")


def test_what_is_wrong_is_said_with_a_way_out(noetl: Noetl, tmp_path: Path) -> None:
    file = tmp_path / "hello.yaml"
    file.write_text(PLAYBOOK)
    noetl("register", str(file))
    wrong = noetl("schedule", "put", "daily", "demo/hello", "--cron", "99 * * * *")
    assert (wrong.code, "bad minute" in wrong.err, "five fields" in wrong.err) == (2, True, True)
    assert noetl("schedule", "show", "daily").code == 2
