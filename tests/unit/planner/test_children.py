"""What becomes of a command that waits for a child, and of the child."""

from typing import Any

import pytest
from tests.support.families import PARENT, Family, parks
from tests.support.planning import PlannerHarness, done

from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.waits import CHILD_DEPTH_MAX, ParentLink
from noetl_contracts.errors import ErrorObject
from noetl_contracts.requests import facts
from noetl_planner.domain.decision.draft import Limits
from noetl_planner.domain.steps import children
from noetl_replay import snapshot

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n"
CALLS = HEAD + "  - {step: call, tool: {kind: playbook, path: child}}\n"
CHILD = HEAD.replace("workflow", "workload: {region: eu}\nworkflow") + (
    "  - step: first\n    tool: {kind: noop}\n"
    "    next: {arcs: [{step: never, when: false}, {step: second}]}\n"
    "  - {step: second, tool: {kind: noop}}\n"
    "  - {step: never, tool: {kind: noop}}\n"
)
TIMED = HEAD + (
    "  - step: call\n    spec: {timeout: 10}\n    tool: {kind: playbook, path: child}\n"
    "    next: {arcs: [{step: late, when: \"{{ event.name == 'call.error' }}\"}]}\n"
    "  - {step: late, tool: {kind: noop}}\n"
)


def parked(parent: str = CALLS, *, limits: Limits | None = None) -> Family:
    """A parent whose only command waits for a child that has been asked for."""
    family = Family(parent=parent, child=CHILD, limits=limits)
    family.start()
    (command,) = family.parent.sent()
    family.tell(family.parent, parks(command))
    return family


def child_of(family: Family) -> PlannerHarness:
    (child,) = family.children()
    return child


def ends(family: Family) -> PlannerHarness:
    """Let the child run to its end, and hand its answer to the parent."""
    family.deliver_all()
    child = child_of(family)
    for name in ("one", "two"):
        (command,) = child.sent()
        family.tell(child, done(command, {"said": name}))
    family.deliver_all()
    return child


def resumed(family: Family) -> Command:
    (command,) = family.parent.sent()
    assert command.resume is not None
    return command


def test_a_parked_command_is_held_by_nobody_and_resumed_by_the_end_of_its_child() -> None:
    family = parked()
    (live,) = family.parent.state.commands.values()
    assert str(live.status) == "PARKED"
    ends(family)
    command = resumed(family)
    assert (command.attempt, command.resume.status) == (2, "COMPLETED")  # type: ignore[union-attr]  # asserted by resumed
    family.tell(family.parent, done(command))
    assert family.parent.types()[-1] == "playbook.completed"


def test_the_child_knows_its_parent_and_its_depth() -> None:
    family = parked()
    family.deliver_all()
    link = child_of(family).state.parent
    assert link is not None
    assert (link.execution_id, link.depth, link.key) == (PARENT, 1, "ask/1/1")
    assert child_of(family).state.parent_execution_id == PARENT


@pytest.mark.parametrize(("wanted", "said"), [("first", "one"), (None, "two"), ("never", "two")])
def test_the_return_step_speaks_or_else_the_last_one(wanted: str | None, said: str) -> None:
    family = Family(parent=CALLS, child=CHILD)
    family.start()
    (command,) = family.parent.sent()
    family.tell(family.parent, parks(command, return_step=wanted))
    ends(family)
    result = resumed(family).resume.result  # type: ignore[union-attr]  # asserted by resumed
    assert result is not None
    assert result.context["data"]["tasks"]["t"]["raw"] == {"said": said}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"return_step": "secnod"},
            "return_step: the playbook has no step 'secnod' (did you mean 'second'?)",
        ),
        (
            {"return_step": "x"},
            "return_step: the playbook has no step 'x' (its steps are first, second, never)",
        ),
        ({"workload": {"regoin": "us"}}, "the playbook has no input 'regoin'; its workload has"),
    ],
)
def test_a_call_that_does_not_fit_its_child_fails_before_the_first_step(
    asked: dict[str, Any], said: str
) -> None:
    family = Family(parent=CALLS, child=CHILD)
    family.start()
    (command,) = family.parent.sent()
    family.tell(family.parent, parks(command, **asked))
    family.deliver_all()
    child = child_of(family)
    assert child.types() == ["playbook.initialized", "playbook.failed"]
    family.deliver_all()
    resume = resumed(family).resume
    assert resume is not None
    assert resume.error is not None
    assert resume.error.kind == "child_failed"
    assert said in resume.error.message


def test_losing_a_parked_command_is_nothing() -> None:
    family = parked()
    (live,) = family.parent.state.commands.values()
    lost = facts.CommandLost(command_id=live.command_id, attempt=1, reason="lease_expired")
    assert family.parent.tell(lost) == []
    beat = facts.CommandHeartbeat(
        command_id=live.command_id,
        attempt=1,
        worker_id=live.worker_id or "",  # type: ignore[arg-type]  # any worker's
    )
    assert family.parent.tell(beat) == []


def test_being_resumed_is_no_loss_and_a_lost_resumption_goes_on_from_the_same_place() -> None:
    family = parked(limits=Limits(step_attempts_max=2))
    ends(family)
    before = resumed(family)
    family.tell(
        family.parent,
        facts.CommandLost(command_id=before.command_id, attempt=2, reason="lease_expired"),
    )
    again = resumed(family)
    assert (again.attempt, again.resume) == (3, before.resume)


def test_a_child_that_nobody_awaits_lets_the_command_go_on_at_once() -> None:
    family = Family(parent=CALLS, child=CHILD)
    family.start()
    (command,) = family.parent.sent()
    family.tell(family.parent, parks(command, is_awaited=False))
    assert resumed(family).resume.status == "started"  # type: ignore[union-attr]  # asserted by resumed
    assert family.parent.types()[-3:] == ["command.parked", "child.started", "command.resumed"]


def test_a_timed_out_wait_resumes_with_the_error_and_calls_the_child_off() -> None:
    family = parked()
    family.deliver_all()
    assert family.parent.last is not None
    assert family.parent.last.wake_at is not None
    family.parent.wait(3601)
    family.tell(family.parent, facts.TimerDue())
    error = resumed(family).resume.error  # type: ignore[union-attr]  # asserted by resumed
    assert error is not None
    assert (error.kind, error.retryable) == ("timeout", True)
    family.deliver_all()
    assert child_of(family).state.cancelling_at is not None


def test_a_step_that_times_out_calls_its_child_off() -> None:
    family = parked(TIMED)
    family.deliver_all()
    family.parent.wait(11)
    family.tell(family.parent, facts.TimerDue())
    assert "command.cancelled" in family.parent.types()
    family.deliver_all()
    assert child_of(family).state.cancelling_at is not None
    assert not family.parent.state.deadlines


@pytest.mark.parametrize("cascade", [True, False])
def test_cancelling_ends_a_parked_parent_at_once_and_its_child_if_asked(*, cascade: bool) -> None:
    family = parked()
    family.deliver_all()
    family.tell(family.parent, facts.CancelRequested(cascade=cascade))
    assert family.parent.types()[-1] == "execution.cancelled"
    family.deliver_all()
    assert (child_of(family).state.cancelling_at is not None) is cascade


def test_a_failed_and_a_cancelled_child_are_errors_of_the_task() -> None:
    family = parked()
    family.deliver_all()
    child = child_of(family)
    family.tell(child, facts.CancelRequested())
    (command,) = child.commands.values()
    family.tell(
        child,
        facts.CommandStopped(command_id=command.command_id, attempt=1, worker_id="w"),  # type: ignore[arg-type]  # any worker's
    )
    family.deliver_all()
    error = resumed(family).resume.error  # type: ignore[union-attr]  # asserted by resumed
    assert error is not None
    assert error.kind == "cancelled"

    family = parked()
    family.deliver_all()
    child = child_of(family)
    (command,) = child.sent()
    boom = ErrorObject(kind="transform", message="boom")
    family.tell(
        child,
        facts.CommandFailed(command_id=command.command_id, attempt=1, worker_id="w", error=boom),  # type: ignore[arg-type]  # any worker's
    )
    family.deliver_all()
    error = resumed(family).resume.error  # type: ignore[union-attr]  # asserted by resumed
    assert error is not None
    assert (error.kind, error.retryable) == ("child_failed", False)
    assert error.details is not None
    assert error.details["error"]["message"] == "boom"


def test_a_child_below_the_deepest_is_refused_without_being_started() -> None:
    family = Family(parent=CALLS, child=CHILD)
    link = ParentLink(
        execution_id=PARENT,
        command_id="9",  # type: ignore[arg-type]  # of no importance here
        key="ask/1/1",
        depth=CHILD_DEPTH_MAX,
    )
    family.tell(family.parent, facts.ExecutionRequested(path="parent", parent=link))
    (command,) = family.parent.sent()
    family.tell(family.parent, parks(command))
    error = resumed(family).resume.error  # type: ignore[union-attr]  # asserted by resumed
    assert error is not None
    assert (error.kind, error.code) == ("limit", "child_depth")
    assert "child.started" not in family.parent.types()
    assert family.children() == []


def test_what_got_lost_between_parent_and_child_is_sent_again_after_a_silence() -> None:
    family = parked()
    family.post.clear()
    family.tell(family.parent, facts.TimerDue())
    assert family.post == []
    family.tell(family.parent, facts.TimerDue(reason=facts.STALLED))
    assert len(family.post) == 1
    ends_without_answer(family)
    family.tell(family.parent, facts.TimerDue(reason=facts.STALLED))
    family.deliver_all()
    assert resumed(family).resume.status == "COMPLETED"  # type: ignore[union-attr]  # asserted by resumed


def ends_without_answer(family: Family) -> None:
    family.deliver_all()
    child = child_of(family)
    while not child.state.is_terminal():
        family.tell(child, *(done(command) for command in child.sent()))
    family.post.clear()


def test_a_parked_state_survives_a_snapshot() -> None:
    family = parked()
    state = snapshot.restore_state(snapshot.build_snapshot(family.parent.state))
    assert state is not None
    family.parent.state = state
    ends(family)
    assert resumed(family).resume.key == "ask/1/1"  # type: ignore[union-attr]  # asserted by resumed


def test_very_many_children_are_asked_for_again_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "ASKED_AGAIN_MAX", 2)
    items = (
        "  - step: each\n    loop: {in: [1, 2, 3, 4, 5], iterator: i, spec: {mode: parallel}}\n"
        "    tool: {kind: playbook, path: child}\n"
    )
    family = Family(parent=HEAD + items, child=CHILD)
    family.start()
    for command in family.parent.sent():
        family.tell(family.parent, parks(command))
    family.post.clear()
    asked: list[str] = []
    for _ in range(3):
        family.tell(family.parent, facts.TimerDue(reason=facts.STALLED))
        asked += [batch.execution_id for batch in family.post]
        family.post.clear()
        family.parent.wait(children.SILENCE_S)
    assert sorted(asked) == sorted(family.parent.state.children)
