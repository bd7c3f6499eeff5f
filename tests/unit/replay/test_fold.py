"""What single events mean, and what the fold refuses."""

import pytest
from tests.support.builders import (
    History,
    Slots,
    a_cancelled_run,
    a_cursor_loop,
    a_failed_run,
    a_lost_worker,
    a_single_step,
    run_items,
)

from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.status import ExecutionStatus
from noetl_replay import fold, rows, state
from noetl_replay.state import ExecutionState, take_changes


def folded(history: History, until: int | None = None) -> ExecutionState:
    return fold.fold_history(begun(history.envelopes[0]), history.envelopes[:until])


def begun(first: Envelope) -> ExecutionState:
    return state.build_empty_state(first.execution_id, first.tenant_id, first.organization_id)


def test_a_history_that_skips_a_version_is_refused() -> None:
    history = a_single_step()
    with pytest.raises(MalformedMessage, match="version 2 does not follow 0"):
        fold.fold_history(begun(history.envelopes[0]), history.envelopes[1:])


def test_a_repeated_event_is_refused() -> None:
    history = a_single_step()
    ended = folded(history)
    with pytest.raises(MalformedMessage, match="does not follow"):
        fold.fold_event(ended, history.envelopes[-1])


def test_a_completed_execution_keeps_its_result_and_no_open_work() -> None:
    ended = folded(a_single_step())
    assert ended.status is ExecutionStatus.COMPLETED
    assert ended.is_terminal()
    assert ended.result is not None
    live = [ended.runs, ended.commands, ended.frames, ended.stages, ended.tokens]
    assert not any(live)


def test_a_failed_execution_names_its_step_and_error() -> None:
    ended = folded(a_failed_run())
    assert (ended.status, ended.failed_step) == (ExecutionStatus.FAILED, "fetch")
    assert ended.failure is not None
    assert ended.failure.message == "no answer"


def test_a_cancelled_execution_keeps_what_was_patched_before() -> None:
    ended = folded(a_cancelled_run())
    assert ended.status is ExecutionStatus.CANCELLED
    assert ended.ctx["seen"] == 7


def test_a_lost_command_goes_on_under_the_next_fence() -> None:
    history = a_lost_worker()
    live = folded(history, until=5)
    (command,) = live.commands.values()
    assert (command.attempt, command.losses, command.worker_id) == (2, 1, None)


def test_frames_and_rows_are_counted_once_however_often_a_frame_was_lost() -> None:
    ended = folded(a_cursor_loop())
    assert (ended.frames_total, ended.rows_total) == (5, 38)


def test_a_stage_counts_failed_rows_apart_from_failed_frames() -> None:
    ended = folded(a_cursor_loop())
    (stage,) = take_changes(ended).stages.values()
    assert (stage.frames, stage.frames_failed, stage.rows_failed) == (5, 1, 2)


def test_a_state_does_not_grow_with_finished_items() -> None:
    def weight(items: int) -> int:
        history = History()
        history.start(entry="each")
        run_items(history, "each", items=items)
        ended = folded(history)
        take_changes(ended)
        return len(repr(ended))

    assert weight(400) - weight(40) < 40


def test_a_state_does_not_grow_with_finished_frames() -> None:
    def weight(frames: int) -> int:
        history = History()
        history.start(entry="drain")
        slots = Slots(history, "drain", slots=2)
        for index in range(frames):
            slots.take(0, index, rows=10)
        open_state = folded(history)
        take_changes(open_state)
        return len(repr(open_state))

    assert weight(200) - weight(20) < 40


def test_changes_hold_what_was_touched_and_are_taken_once() -> None:
    history = a_single_step()
    ended = folded(history)
    shown = rows.build_changed_rows(ended, take_changes(ended))
    assert [row["status"] for row in shown["command"]] == ["COMPLETED"]
    again = rows.build_changed_rows(ended, take_changes(ended))
    assert again["command"] == []
