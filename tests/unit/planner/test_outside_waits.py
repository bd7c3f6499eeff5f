"""What becomes of a command that waits for a message from outside."""

from typing import Any

import pytest
from tests.support.planning import ROWS, WORKER, Desk, done

from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.waits import MessageWait
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_replay import rows

HOLDS = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - {step: hold, tool: {kind: external}}
"""


def parked(desk: Desk, command: Command, **fields: Any) -> None:
    """Let a command wait for a message."""
    values = {"key": "hold_task/1/1", "task": "hold_task", "mode": "signal", "address": "signal/k"}
    desk.tell(
        facts.CommandParked(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=WORKER,
            resume_ref=ROWS,
            wait=MessageWait(**{**values, "timeout_s": 60.0, **fields}),
        )
    )


def waiting(**fields: Any) -> Desk:
    """An execution whose only command waits."""
    desk = Desk(HOLDS)
    desk.start()
    (command,) = desk.sent()
    parked(desk, command, **fields)
    return desk


def arrived(desk: Desk, *, key: str = "hold_task/1/1", said: int = 1) -> facts.MessageArrived:
    (command_id,) = desk.state.commands
    result = ResultEnvelope(status="ok", context={"data": said})
    return facts.MessageArrived(command_id=command_id, key=key, result=result)


def resumed(desk: Desk) -> Any:
    (command,) = desk.sent()
    assert command.resume is not None
    return command.resume


def test_the_first_message_resumes_and_later_ones_change_nothing() -> None:
    desk = waiting()
    desk.tell(arrived(desk))
    assert (resumed(desk).status, resumed(desk).result.context) == ("delivered", {"data": 1})
    (command,) = desk.sent()
    assert desk.tell(arrived(desk, said=2)) == []
    desk.tell(done(command))
    assert desk.types()[-1] == "playbook.completed"


def test_a_message_for_another_wait_changes_nothing() -> None:
    desk = waiting()
    assert desk.tell(arrived(desk, key="hold_task/1/2")) == []


@pytest.mark.parametrize("is_ok", [True, False])
def test_a_wait_ends_with_its_time(*, is_ok: bool) -> None:
    desk = waiting(is_timeout_ok=is_ok)
    desk.wait(61)
    desk.tell(facts.TimerDue())
    assert resumed(desk).status == "timeout"
    assert (resumed(desk).error is None) is is_ok
    assert desk.tell(arrived(desk)) == []


def test_cancelling_ends_a_wait_at_once() -> None:
    desk = waiting()
    desk.tell(facts.CancelRequested())
    assert desk.types()[-1] == "execution.cancelled"


def test_cancelling_waits_until_what_was_submitted_is_called_off() -> None:
    desk = waiting(cancels=True)
    desk.tell(facts.CancelRequested())
    assert resumed(desk).status == "stopped"
    (command,) = desk.sent()
    assert desk.last is not None
    assert desk.last.to_stop == []
    desk.tell(
        facts.CommandStopped(
            command_id=command.command_id, attempt=command.attempt, worker_id=WORKER
        )
    )
    assert desk.types()[-2:] == ["step.exit", "execution.cancelled"]


def test_what_was_submitted_while_the_execution_was_being_cancelled_is_called_off() -> None:
    desk = Desk(HOLDS)
    desk.start()
    (command,) = desk.sent()
    desk.tell(facts.CancelRequested())
    parked(desk, command, cancels=True)
    assert resumed(desk).status == "stopped"
    parked_late = Desk(HOLDS)
    parked_late.start()
    (command,) = parked_late.sent()
    parked_late.tell(facts.CancelRequested())
    parked(parked_late, command)
    assert parked_late.types()[-1] == "execution.cancelled"


def test_only_a_command_that_waits_for_a_message_shows_its_wait() -> None:
    desk = waiting(title="Sure?")
    (live,) = desk.state.commands.values()
    shown = rows.build_command_row(desk.state, live)
    assert (shown["status"], shown["wait"]["title"]) == ("PARKED", "Sure?")
    desk.tell(arrived(desk))
    (live,) = desk.state.commands.values()
    assert "wait" not in rows.build_command_row(desk.state, live)
