"""What becomes of a command that waits for a message from outside."""

from typing import Any

import pytest
from msgspec import structs
from tests.support.planning import ROWS, WORKER, PlannerHarness, done

from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.waits import MessageWait
from noetl_contracts.identity.actors import Actor, ActorKind, Via, build_caused_actor
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


def parked(harness: PlannerHarness, command: Command, **fields: Any) -> None:
    """Let a command wait for a message."""
    values = {"key": "hold_task/1/1", "task": "hold_task", "mode": "signal", "address": "signal/k"}
    harness.tell(
        facts.CommandParked(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=WORKER,
            resume_ref=ROWS,
            wait=MessageWait(**{**values, "timeout_s": 60.0, **fields}),
        )
    )


def waiting(**fields: Any) -> PlannerHarness:
    """An execution whose only command waits."""
    harness = PlannerHarness(HOLDS)
    harness.start()
    (command,) = harness.sent()
    parked(harness, command, **fields)
    return harness


def arrived(
    harness: PlannerHarness, *, key: str = "hold_task/1/1", said: int = 1
) -> facts.MessageArrived:
    (command_id,) = harness.state.commands
    result = ResultEnvelope(status="ok", context={"data": said})
    return facts.MessageArrived(command_id=command_id, key=key, result=result)


def resumed(harness: PlannerHarness) -> Any:
    (command,) = harness.sent()
    assert command.resume is not None
    return command.resume


def test_the_first_message_resumes_and_later_ones_change_nothing() -> None:
    harness = waiting()
    harness.tell(arrived(harness))
    assert (resumed(harness).status, resumed(harness).result.context) == ("delivered", {"data": 1})
    (command,) = harness.sent()
    assert harness.tell(arrived(harness, said=2)) == []
    harness.tell(done(command))
    assert harness.types()[-1] == "playbook.completed"


def test_a_message_for_another_wait_changes_nothing() -> None:
    harness = waiting()
    assert harness.tell(arrived(harness, key="hold_task/1/2")) == []


@pytest.mark.parametrize("is_ok", [True, False])
def test_a_wait_ends_with_its_time(*, is_ok: bool) -> None:
    harness = waiting(is_timeout_ok=is_ok)
    harness.wait(61)
    harness.tell(facts.TimerDue())
    assert resumed(harness).status == "timeout"
    assert (resumed(harness).error is None) is is_ok
    assert harness.tell(arrived(harness)) == []


def test_cancelling_ends_a_wait_at_once() -> None:
    harness = waiting()
    harness.tell(facts.CancelRequested())
    assert harness.types()[-1] == "execution.cancelled"


def test_cancelling_waits_until_what_was_submitted_is_called_off() -> None:
    harness = waiting(cancels=True)
    harness.tell(facts.CancelRequested())
    assert resumed(harness).status == "stopped"
    (command,) = harness.sent()
    assert harness.last is not None
    assert harness.last.to_stop == []
    harness.tell(
        facts.CommandStopped(
            command_id=command.command_id, attempt=command.attempt, worker_id=WORKER
        )
    )
    assert harness.types()[-2:] == ["step.exit", "execution.cancelled"]


def test_what_was_submitted_while_the_execution_was_being_cancelled_is_called_off() -> None:
    harness = PlannerHarness(HOLDS)
    harness.start()
    (command,) = harness.sent()
    harness.tell(facts.CancelRequested())
    parked(harness, command, cancels=True)
    assert resumed(harness).status == "stopped"
    parked_late = PlannerHarness(HOLDS)
    parked_late.start()
    (command,) = parked_late.sent()
    parked_late.tell(facts.CancelRequested())
    parked(parked_late, command)
    assert parked_late.types()[-1] == "execution.cancelled"


def test_only_a_command_that_waits_for_a_message_shows_its_wait() -> None:
    harness = waiting(title="Sure?")
    (live,) = harness.state.commands.values()
    shown = rows.build_command_row(harness.state, live)
    assert (shown["status"], shown["wait"]["title"]) == ("PARKED", "Sure?")
    harness.tell(arrived(harness))
    (live,) = harness.state.commands.values()
    assert "wait" not in rows.build_command_row(harness.state, live)


ANN = Actor(kind=ActorKind.PERSON, issuer="https://id", id="7", name="Ann")
BOB = Actor(kind=ActorKind.PERSON, issuer="https://id", id="8", name="Bob")
EARLIER = Actor(kind=ActorKind.UNKNOWN, id="Ann", name="Ann")


def a_key_of(maker: Actor | None, account: str = "bot") -> Actor:
    """Somebody with an API key, and who made the first of the keys that led to it."""
    return Actor(kind=ActorKind.SERVICE_ACCOUNT, id=account, key_prefix=account, maker=maker)


def webhook_of(cause: Actor) -> Actor:
    return build_caused_actor(ActorKind.WEBHOOK, Via.WEBHOOK, "paid", "paid", cause)


@pytest.mark.parametrize(
    ("starter", "approver", "is_taken"),
    [
        (ANN, BOB, True),
        (ANN, structs.replace(ANN, name="Ann Wu", via=Via.CLI), False),
        (ANN, a_key_of(ANN), False),
        (a_key_of(ANN), ANN, False),
        (a_key_of(ANN), a_key_of(ANN, "second"), False),
        (webhook_of(a_key_of(ANN)), ANN, False),
        (ANN, a_key_of(BOB), True),
        (a_key_of(ANN), a_key_of(BOB, "second"), True),
        # Of an earlier release's keys only the names of their makers are known.
        (ANN, a_key_of(EARLIER), False),
        (a_key_of(EARLIER), a_key_of(EARLIER, "second"), False),
        (BOB, a_key_of(EARLIER), True),
        (a_key_of(None), a_key_of(None, "second"), True),
    ],
)
def test_no_message_approves_for_who_started_it_nor_for_the_maker_of_a_key(
    starter: Actor, approver: Actor, *, is_taken: bool
) -> None:
    harness = PlannerHarness(HOLDS)
    harness.tell(facts.ExecutionRequested(path="p"), actor=starter)
    (command,) = harness.sent()
    parked(harness, command, mode="approval", address="approval/9", four_eyes=True)
    events = harness.tell(arrived(harness), actor=approver)
    assert bool(events) == is_taken
    # The second person may still come.
    carl = structs.replace(BOB, id="9", name="Carl")
    assert bool(harness.tell(arrived(harness), actor=carl)) != is_taken
