"""What the command line counts and shows."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.storage import NOON, a_stream, an_execution

from noetl_cli import terminal_output
from noetl_cli.errors import ExitCode
from noetl_cli.planner import execution_stream
from noetl_cli.terminal import watch
from noetl_cli.terminal.display import format_progress
from noetl_cli.terminal.progress_tracker import LoopMeter, ProgressTracker
from noetl_cli.terminal.watch import WatchRequest
from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject, FailedTry
from noetl_contracts.events import Event
from noetl_contracts.events.command_events import CommandReissued
from noetl_contracts.events.execution_events import (
    ExecutionCancelled,
    PlaybookCompleted,
    PlaybookFailed,
)
from noetl_contracts.events.loop_events import LoopStarted
from noetl_contracts.events.step_events import CallDone, CallError
from noetl_contracts.ids import CommandId, RunId
from noetl_contracts.payloads import ResultEnvelope
from noetl_planner.api.lookup import views

RUN = RunId("12")


def shown(events: list[Event]) -> list[dict[str, Any]]:
    """Events as the API shows them."""
    stream = a_stream(an_execution(), events)
    return [
        codec.decode_json(codec.encode_json(views.view_event(envelope)))
        for envelope in stream.envelopes
    ]


def tracked(events: list[Event]) -> ProgressTracker:
    tracker = ProgressTracker()
    for view in shown(events):
        tracker.count_event(view)
    return tracker


def an_item(index: int, *, failed: bool = False) -> Event:
    place: dict[str, Any] = {
        "step": "fetch",
        "run_id": RUN,
        "command_id": CommandId("5"),
        "item_index": index,
    }
    if failed:
        return CallError(error=ErrorObject(kind="timeout", message="too slow"), **place)
    return CallDone(result=ResultEnvelope(status="ok"), **place)


LOOP = LoopStarted(step="fetch", run_id=RUN, mode="parallel", max_in_flight=2, total=4)


def test_items_are_counted_against_their_total() -> None:
    meter = tracked([LOOP, an_item(0), an_item(1, failed=True)]).meters[RUN]
    assert (meter.done, meter.failed, meter.total) == (1, 1, 4)
    assert format_progress(meter).startswith("2/4 items")
    assert "1 failed" in format_progress(meter)


def test_an_event_that_comes_twice_counts_once() -> None:
    tracker = ProgressTracker()
    for view in shown([LOOP, an_item(0)]) * 2:
        tracker.count_event(view)
    assert tracker.meters[RUN].done == 1


def test_an_attempt_that_was_lost_is_a_retry() -> None:
    again = CommandReissued(
        command_id=CommandId("5"), run_id=RUN, step="fetch", attempt=2, reason="redelivered"
    )
    tracker = tracked([LOOP, again])
    assert tracker.retries == tracker.meters[RUN].retries == 1


def test_an_event_of_a_newer_release_is_passed_over() -> None:
    (view,) = shown([LOOP])
    assert ProgressTracker().count_event({**view, "event_type": "loop.rejoiced"}) == []


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([PlaybookCompleted()], ExitCode.OK),
        ([LOOP, an_item(0, failed=True), PlaybookCompleted()], ExitCode.PARTIAL),
        ([PlaybookFailed(error=ErrorObject(kind="x", message="y"))], ExitCode.FAILED),
        ([ExecutionCancelled()], ExitCode.CANCELLED),
    ],
)
def test_an_outcome_is_an_exit_code(events: list[Event], code: ExitCode) -> None:
    assert watch.choose_exit_code(tracked(events)) == code


@pytest.mark.parametrize(
    ("failed", "attach", "is_told"),
    [(True, "again", True), (False, "again", False), (True, "", False)],
)
def test_the_end_names_the_commands_for_failed_items(
    capsys: pytest.CaptureFixture[str], *, failed: bool, attach: str, is_told: bool
) -> None:
    views = shown([LOOP, an_item(0, failed=failed), PlaybookCompleted()])
    watch_request = WatchRequest(
        execution_id="7", events=lambda _: iter(views), cancel=lambda: None, attach=attach
    )
    watch.watch_execution(watch_request)
    told = "failed items: noetl items 7 --failed; run them again: noetl rerun 7 --failed"
    assert (told in capsys.readouterr().err) == is_told


@pytest.mark.parametrize(
    ("task", "which"),
    [("fetch_task", "attempt 1"), ("fetch", "attempt 1"), ("get", "get, attempt 1")],
)
def test_a_retry_names_its_task_where_the_step_has_several(task: str, which: str) -> None:
    failed_try = FailedTry(task=task, attempt=1, at=NOON, kind="timeout", message="late")
    done = CallDone(
        step="fetch",
        run_id=RUN,
        command_id=CommandId("5"),
        result=ResultEnvelope(status="ok"),
        tries=[failed_try],
    )
    (view,) = shown([done])
    (note,) = ProgressTracker().count_event(view)
    assert note.text == f"fetch: {which} at {NOON:%H:%M:%S}: timeout: late"


def test_the_rate_is_that_of_the_last_seconds_and_the_rest_is_estimated() -> None:
    meter = LoopMeter(
        step="s", run_id="1", unit="rows", started_at=NOON, seen_at=NOON, total=1000, marks=[]
    )
    for second in range(1, 31):
        meter.done += 10 if second <= 20 else 40
        meter.record_progress(NOON + timedelta(seconds=second))
    assert meter.compute_units_per_s() == pytest.approx(40)
    assert meter.compute_seconds_left() == pytest.approx((1000 - 600) / 40)
    assert format_progress(meter) == "600/1,000 rows  40/s  ETA 0:10"


def test_data_cannot_reach_the_terminal() -> None:
    assert terminal_output.flatten_text("a\x1b[2J\nb\r\x07c\u2028d") == "a\\x1b[2J b \\x07c d"
    assert len(terminal_output.flatten_text("x" * 10_000)) == terminal_output.LINE_CHARACTERS_MAX


def test_messages_survive_any_cut_and_any_separator_inside_json() -> None:
    text = '{"a": "1\u2028 2\x85"}'
    raw = f": hi\r\nid: 7\r\nevent: e\r\ndata: {text}\r\n\r\nevent: end\ndata: {{}}\n\n".encode()
    for size in (1, 3, len(raw)):
        chunks = [raw[at : at + size] for at in range(0, len(raw), size)]
        beat, event, end = execution_stream.parse_messages(chunks)
        assert beat.data is None
        assert (event.event, event.message_id, event.data) == ("e", "7", text)
        assert end.event == "end"


def test_a_sender_without_line_ends_is_cut_off() -> None:
    endless = (b"x" * 1024 * 1024 for _ in range(100))
    with pytest.raises(execution_stream.LineTooLongError):
        list(execution_stream.parse_messages(endless))


def test_a_clock_reading_is_utc() -> None:
    (view,) = shown([LOOP])
    assert datetime.fromisoformat(view["created_at"]).tzinfo == UTC
