"""What becomes of a command that lets time pass: a timer that any planner keeps."""

from datetime import timedelta

import pytest
from tests.support.planning import ROWS, WORKER, PlannerHarness, done

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


def parked(harness: PlannerHarness, command: Command, *, seconds: float) -> None:
    """Let a command wait for time to pass."""
    wait = TimeWait(
        key="rest_task/1/1/retry/0",
        task="rest_task",
        reason="retry",
        until=harness.now + timedelta(seconds=seconds),
        timeout_s=seconds,
    )
    harness.tell(
        facts.CommandParked(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=WORKER,
            resume_ref=ROWS,
            wait=wait,
        )
    )


def resting(seconds: float) -> tuple[PlannerHarness, Command]:
    harness = PlannerHarness(RESTS)
    harness.start()
    (command,) = harness.sent()
    parked(harness, command, seconds=seconds)
    return harness, command


@pytest.mark.parametrize("seconds", [6.0, TWO_HOURS_S, YEAR_S])
def test_a_wait_ends_when_its_time_has_passed_and_not_before(seconds: float) -> None:
    harness, first = resting(seconds)
    harness.wait(seconds - 1)
    harness.tell(facts.TimerDue())
    assert harness.sent() == []
    harness.wait(2)
    harness.tell(facts.TimerDue())
    (command,) = harness.sent()
    assert command.resume is not None
    assert (command.resume.status, command.resume.error) == ("elapsed", None)
    assert command.attempt == first.attempt + 1
    harness.tell(done(command))
    assert harness.types()[-1] == "playbook.completed"


def test_no_worker_is_missed_while_time_passes() -> None:
    harness, command = resting(TWO_HOURS_S)
    lost = facts.CommandLost(
        command_id=command.command_id, attempt=command.attempt, reason="lease expired"
    )
    assert harness.tell(lost) == []
    assert harness.sent() == []


def test_a_late_word_of_the_worker_that_parked_changes_nothing_after_the_wait() -> None:
    harness, first = resting(TWO_HOURS_S)
    harness.wait(TWO_HOURS_S + 1)
    harness.tell(facts.TimerDue())
    (second,) = harness.sent()
    harness.tell(done(first))
    assert harness.types()[-1] == "command.rejected"
    harness.tell(done(second))
    assert harness.types()[-1] == "playbook.completed"


def test_an_execution_that_is_cancelled_waits_for_nothing() -> None:
    harness, _ = resting(YEAR_S)
    harness.tell(facts.CancelRequested(reason="enough"))
    assert harness.types()[-1] == "execution.cancelled"


def test_a_wait_that_ends_in_a_pause_goes_on_when_the_execution_does() -> None:
    harness, _ = resting(TWO_HOURS_S)
    harness.tell(facts.PauseRequested(request_id="p"))
    harness.wait(TWO_HOURS_S + 1)
    harness.tell(facts.TimerDue())
    assert harness.sent() == []
    harness.tell(facts.ResumeRequested(request_id="r"))
    (command,) = harness.sent()
    assert command.resume is not None
    assert command.resume.status == "elapsed"
