"""What becomes of a command that lets time pass: a timer that any planner keeps."""

from datetime import timedelta

import pytest
from tests.support.planning import ROWS, WORKER, Desk, done

from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.waits import TimeWait
from noetl_contracts.requests import facts

RESTS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - {step: rest, tool: {kind: noop}}
"""
TWO_HOURS_S = 7200.0
YEAR_S = 366 * 86_400.0


def parked(desk: Desk, command: Command, *, seconds: float) -> None:
    """Let a command wait for time to pass."""
    wait = TimeWait(
        key="rest_task/1/1/retry/0",
        task="rest_task",
        reason="retry",
        until=desk.now + timedelta(seconds=seconds),
        timeout_s=seconds,
    )
    desk.tell(
        facts.CommandParked(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=WORKER,
            resume_ref=ROWS,
            wait=wait,
        )
    )


def resting(seconds: float) -> tuple[Desk, Command]:
    desk = Desk(RESTS)
    desk.start()
    (command,) = desk.sent()
    parked(desk, command, seconds=seconds)
    return desk, command


@pytest.mark.parametrize("seconds", [6.0, TWO_HOURS_S, YEAR_S])
def test_a_wait_ends_when_its_time_has_passed_and_not_before(seconds: float) -> None:
    desk, first = resting(seconds)
    desk.wait(seconds - 1)
    desk.tell(facts.TimerDue())
    assert desk.sent() == []
    desk.wait(2)
    desk.tell(facts.TimerDue())
    (command,) = desk.sent()
    assert command.resume is not None
    assert (command.resume.status, command.resume.error) == ("elapsed", None)
    assert command.attempt == first.attempt + 1
    desk.tell(done(command))
    assert desk.types()[-1] == "playbook.completed"


def test_no_worker_is_missed_while_time_passes() -> None:
    desk, command = resting(TWO_HOURS_S)
    lost = facts.CommandLost(
        command_id=command.command_id, attempt=command.attempt, reason="lease expired"
    )
    assert desk.tell(lost) == []
    assert desk.sent() == []


def test_a_late_word_of_the_worker_that_parked_changes_nothing_after_the_wait() -> None:
    desk, first = resting(TWO_HOURS_S)
    desk.wait(TWO_HOURS_S + 1)
    desk.tell(facts.TimerDue())
    (second,) = desk.sent()
    desk.tell(done(first))
    assert desk.types()[-1] == "command.rejected"
    desk.tell(done(second))
    assert desk.types()[-1] == "playbook.completed"


def test_an_execution_that_is_cancelled_waits_for_nothing() -> None:
    desk, _ = resting(YEAR_S)
    desk.tell(facts.CancelRequested(reason="enough"))
    assert desk.types()[-1] == "execution.cancelled"


def test_a_wait_that_ends_in_a_pause_goes_on_when_the_execution_does() -> None:
    desk, _ = resting(TWO_HOURS_S)
    desk.tell(facts.PauseRequested(request_id="p"))
    desk.wait(TWO_HOURS_S + 1)
    desk.tell(facts.TimerDue())
    assert desk.sent() == []
    desk.tell(facts.ResumeRequested(request_id="r"))
    (command,) = desk.sent()
    assert command.resume is not None
    assert command.resume.status == "elapsed"
