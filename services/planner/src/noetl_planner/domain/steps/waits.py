"""Commands that wait for something else: parked without a worker, resumed when the wait ends.

A resumed command goes on inside the attempt of the task that waited, so being resumed is no loss;
a worker that is lost afterwards leads to the same place again.
"""

from datetime import datetime
from typing import assert_never

from msgspec import UNSET

from noetl_contracts.commands.waits import (
    CHILD_DEPTH_MAX,
    DELIVERED,
    ELAPSED,
    STARTED,
    STOPPED,
    TIMED_OUT,
    ChildWait,
    MessageWait,
    TimeWait,
    Wait,
)
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import command_events
from noetl_contracts.identity import actors
from noetl_contracts.ids import ExecutionId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_contracts.status import CommandStatus, ExecutionStatus
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.steps import children, commands
from noetl_replay.state import CommandState


def park_command(
    draft: DecisionDraft, command_state: CommandState, fact: facts.CommandParked
) -> None:
    """Let a command wait, and begin what it waits for."""
    if command_state.status is CommandStatus.PARKED:
        return
    wait = fact.wait
    is_cancelled = draft.state.cancelling_at is not None
    if is_cancelled and not _must_cancel_remotely(wait):
        commands.cancel_command(draft, command_state, "execution cancelled")
        return
    draft.append_event(
        command_events.CommandParked(
            command_id=command_state.command_id,
            run_id=command_state.run_id,
            step=command_state.step,
            attempt=command_state.attempt,
            worker_id=fact.worker_id,
            resume_ref=fact.resume_ref,
            wait=wait,
        )
    )
    if is_cancelled:
        resume_command(draft, command_state, status=STOPPED)
    elif isinstance(wait, ChildWait):
        _start_child(draft, command_state, wait)


def _start_child(draft: DecisionDraft, command_state: CommandState, wait: ChildWait) -> None:
    depth = children.compute_execution_depth(draft) + 1
    if depth > CHILD_DEPTH_MAX:
        resume_command(
            draft,
            command_state,
            status=ExecutionStatus.FAILED,
            error=_build_child_depth_error(command_state),
        )
        return
    child = children.start_child(draft, command_state, wait, depth=depth)
    if not wait.is_awaited:
        resume_command(draft, command_state, status=STARTED, child=child)


def end_child(draft: DecisionDraft, fact: facts.ChildEnded) -> None:
    """Accept a child's end, once; resume the command that waits for it."""
    child = draft.state.children.get(fact.child_execution_id)
    if child is None:
        return
    draft.append_event(
        command_events.ChildEnded(
            child_execution_id=fact.child_execution_id,
            command_id=child.command_id,
            step=child.step,
            key=child.wait.key,
            status=fact.status,
            error=fact.error,
        )
    )
    command_state = draft.state.commands.get(child.command_id)
    if (
        command_state is None
        or command_state.parked is None
        or command_state.parked.wait.key != child.wait.key
    ):
        return
    error = children.find_child_error(fact, path=child.wait.path)
    resume_command(
        draft,
        command_state,
        status=fact.status,
        child=fact.child_execution_id,
        result=fact.result if error is None else None,
        error=error,
    )


def deliver_message(draft: DecisionDraft, fact: facts.MessageArrived) -> None:
    """Hand a message to the command that waits for it; the first one ends the wait."""
    command_state = draft.state.commands.get(fact.command_id)
    if (
        command_state is None
        or command_state.parked is None
        or command_state.parked.wait.key != fact.key
    ):
        return
    wait = command_state.parked.wait
    if isinstance(wait, MessageWait) and not _is_own_approval(draft, wait):
        resume_command(draft, command_state, status=DELIVERED, result=fact.result)


def _is_own_approval(draft: DecisionDraft, wait: MessageWait) -> bool:
    """Tell whether who started the execution approves it where another person must.

    The API refuses it with an answer, by the same rule; this holds for messages from elsewhere
    too, and for one that was kept for a wait which needed no second person. An earlier release's
    events do not name the makers of keys: the API looks these up.
    """
    if not wait.four_eyes:
        return False
    approver, starter = draft.actor, draft.state.actor
    if approver is UNSET or starter is UNSET:
        return True
    return actors.is_one_person(actors.get_first_cause(approver), actors.get_first_cause(starter))


def resume_command(
    draft: DecisionDraft,
    command_state: CommandState,
    *,
    status: str,
    child: ExecutionId | None = None,
    result: ResultEnvelope | None = None,
    error: ErrorObject | None = None,
) -> None:
    """Send a parked command out again, with how its wait ended."""
    assert command_state.parked is not None, "only a parked command is resumed"
    draft.append_event(
        command_events.CommandResumed(
            command_id=command_state.command_id,
            run_id=command_state.run_id,
            step=command_state.step,
            attempt=command_state.attempt + 1,
            key=command_state.parked.wait.key,
            status=status,
            child_execution_id=child,
            result=result,
            error=error,
        )
    )
    draft.to_send[command_state.command_id] = None


def expire_waits(draft: DecisionDraft) -> None:
    """End the waits whose time is over; what was waited for in vain is called off."""
    due = [command for command, at in draft.state.deadlines.items() if at <= draft.now]
    for command_id in due:
        command_state = draft.state.commands[command_id]
        assert command_state.parked is not None, "only a parked command has a deadline"
        wait = command_state.parked.wait
        match wait:
            case TimeWait():
                resume_command(draft, command_state, status=ELAPSED)
                continue
            case ChildWait():
                children.cancel_child_of_command(
                    draft, command_state, reason="its parent's task timed out"
                )
                missed = f"playbook {wait.path!r} did not end"
            case MessageWait():
                missed = f"no message came for task {wait.task!r}"
            case _:
                assert_never(wait)
        is_ok = isinstance(wait, MessageWait) and wait.is_timeout_ok
        error = (
            None if is_ok else _build_wait_timeout_error(f"{missed} within {wait.timeout_s:g} s")
        )
        resume_command(draft, command_state, status=TIMED_OUT, error=error)


def find_next_deadline(draft: DecisionDraft) -> datetime | None:
    """Return when the next wait is over."""
    return min(draft.state.deadlines.values(), default=None)


def cancel_parked_commands(draft: DecisionDraft, reason: str) -> None:
    """Cancel every parked command; no worker holds one.

    When a command has submitted work elsewhere, a worker cancels that first, within the grace
    period.
    """
    for command_state in [
        command for command in draft.state.commands.values() if command.parked is not None
    ]:
        if command_state.parked is not None and _must_cancel_remotely(command_state.parked.wait):
            resume_command(draft, command_state, status=STOPPED)
        else:
            commands.cancel_command(draft, command_state, reason)


def _must_cancel_remotely(wait: Wait) -> bool:
    """Tell whether something was submitted elsewhere that a worker can call off."""
    return isinstance(wait, MessageWait) and wait.cancels


def _build_wait_timeout_error(message: str) -> ErrorObject:
    return ErrorObject(kind="timeout", code="TIMEOUT", retryable=True, message=message)


def _build_child_depth_error(command_state: CommandState) -> ErrorObject:
    return ErrorObject(
        kind="limit",
        code="child_depth",
        step=command_state.step,
        message=f"step {command_state.step!r} would start a child at a depth of more than "
        f"{CHILD_DEPTH_MAX}: call fewer playbooks from within each other",
    )
