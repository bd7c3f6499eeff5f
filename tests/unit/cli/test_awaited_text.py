"""Lines of `noetl status` and `noetl events` about waits and attempts."""

from typing import Any

import pytest

from noetl_cli.commands.executions.events import format_event
from noetl_cli.commands.executions.status import (
    _format_awaited_line,
    _format_step_row,
    find_cursor_step,
    format_status_lines,
    has_failed_items,
)
from noetl_cli.terminal.error_text import format_failed_items
from noetl_cli.terminal.progress_tracker import format_attempts

TRY = {"task": "fetch", "attempt": 1, "at": "2026-01-02T03:04:05Z", "kind": "timeout"}
TRIES = [{**TRY, "message": "late"}, {**TRY, "attempt": 2, "message": "later"}]

STATUS: dict[str, Any] = {
    "execution_id": "7",
    "path": "demo/a",
    "version": 1,
    "duration": None,
    "current_step": None,
    "warnings": 0,
    "stages": [],
    "waiting": [],
}


def event(kind: str, **context: Any) -> dict[str, Any]:
    return {
        "version": 7,
        "event_type": kind,
        "node_name": "fetch",
        "error": None,
        "context": {"command_id": "5", **context},
    }


def test_attempts_before_a_success_are_told_with_the_first_error() -> None:
    assert format_attempts(TRIES) == "3 attempts, first: timeout: late"
    assert format_attempts(TRIES[1:]) == "3 attempts, attempt 2: timeout: later"
    run = {"step": "fetch", "status": "COMPLETED", "duration": 1, "tasks": {}, "error": None}
    assert _format_step_row({**run, "tries": TRIES})[3] == "3 attempts, first: timeout: late"
    # Planners of before tell no attempts.
    assert _format_step_row(run)[3] == ""


def test_an_event_tells_attempts_of_tasks_and_not_the_number_of_the_command() -> None:
    done = format_event(event("call.done", attempt=1, tries=TRIES))
    assert done.endswith("command_id=5 after 3 attempts, first: timeout: late")
    assert format_event(event("command.started", attempt=1)).endswith("fetch command_id=5")
    assert format_event(event("command.started", attempt=2)).endswith("command_id=5 sent=2")


def test_an_event_tells_its_notes() -> None:
    done = format_event(event("call.done", notes=["collected_nothing", "ttl_unused"]))
    assert done.endswith(
        "note collected_nothing: no page had anything where merge_path leads note ttl_unused"
    )


@pytest.mark.parametrize(
    ("status", "loop", "shown"),
    [
        ("CANCELLED", "RUNNING", "CANCELLED"),
        ("FAILED", "RUNNING", "CANCELLED"),
        ("RUNNING", "RUNNING", "RUNNING"),
        ("FAILED", "FAILED", "FAILED"),
    ],
)
def test_no_loop_of_an_ended_execution_runs(status: str, loop: str, shown: str) -> None:
    loops = [{"step": "each", "status": loop, "stage_id": None, "total": 9, "done": 2, "failed": 0}]
    (line,) = format_status_lines({**STATUS, "status": status, "loops": loops})[1:]
    assert line == f"  each: {shown}  2/9 items"


def test_a_status_says_until_when_an_approval_is_waited_for() -> None:
    message = {
        "step": "ask",
        "mode": "approval",
        "title": None,
        "since": "2026-01-02T03:04:05.123Z",
        "until": "2026-01-03T03:04:05.123Z",
        "command": "noetl approve 7",
    }
    assert _format_awaited_line(message) == (
        "ask: waits for an approval, since 2026-01-02T03:04:05, until 2026-01-03T03:04:05: "
        "noetl approve 7"
    )
    endless = _format_awaited_line({**message, "mode": "callback", "until": None, "command": ""})
    assert endless == "ask: waits for a callback, since 2026-01-02T03:04:05"


@pytest.mark.parametrize(
    ("failed", "rows_failed", "is_told"), [(1, 0, True), (0, 2, True), (0, 0, False)]
)
def test_failed_items_of_loops_are_seen(failed: int, rows_failed: int, *, is_told: bool) -> None:
    found = {
        "loops": [{"stage_id": "3", "failed": failed}],
        "stages": [
            {"stage_id": "3", "rows_failed": rows_failed},
            {"stage_id": "4", "rows_failed": 9},
        ],
    }
    assert has_failed_items(found) == is_told
    assert format_failed_items("7", is_over=False) == ("  failed items: noetl items 7 --failed")


def test_where_rows_cannot_run_alone_the_whole_loop_is_named() -> None:
    cursor = {"step": "work", "mode": "cursor", "failed": 2}
    assert find_cursor_step({"loops": [cursor]}) == "work"
    assert find_cursor_step({"loops": [cursor, {**cursor, "mode": "parallel"}]}) is None
    assert find_cursor_step({"loops": [{**cursor, "failed": 0}]}) is None
    assert format_failed_items("7", whole_step="work").endswith(
        "run the loop again: noetl rerun 7 --from work"
    )


def test_what_is_late_says_since_when_until_it_has_ended() -> None:
    mark = {"step": None, "run_id": None, "since": "2026-01-02T03:04:05.5Z", "ended_at": None}
    of_step = {**mark, "step": "load"}
    over = {**mark, "step": "fetch", "ended_at": "2026-01-02T04:00:00Z"}
    status = {**STATUS, "status": "RUNNING", "loops": [], "late": [mark, of_step, over]}
    assert format_status_lines(status)[1:] == [
        "late since 2026-01-02 03:04:05 UTC",
        "load: late since 2026-01-02 03:04:05 UTC",
    ]


def test_a_status_says_which_worker_was_lost_with_what_and_what_to_do() -> None:
    reason = "no worker serves pool 'default': start one with NOETL_WORKER_POOL=default"
    place = {"pool": "default", "lane": "io", "commands": 1, "is_served": False, "reason": reason}
    lost = {
        **place,
        "worker_id": "w-1",
        "steps": ["load", "sum"],
        "since": "2026-01-01T12:00:00.5Z",
        "is_held": True,
    }
    status = {**STATUS, "status": "RUNNING", "loops": []}
    what = "worker w-1 holds load, sum, and nothing is heard of it since 2026-01-01 12:00:00 UTC"
    assert format_status_lines({**status, "lost": [lost]})[1:] == [f"{what}: {reason}"]
    # What waits is told once.
    given_up = {**status, "lost": [{**lost, "is_held": False}], "waiting": [place]}
    what = "worker w-1 was lost with load, sum, which waits since 2026-01-01 12:00:00 UTC"
    assert format_status_lines(given_up)[1:] == [f"{what}: {reason}"]
