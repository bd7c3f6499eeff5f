"""Life of an execution: activations begin, end and route until none is left."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from noetl_contracts import ids
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import execution_events, step_events
from noetl_contracts.events.state_events import StateChanged
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_contracts.status import RunStatus
from noetl_planner.domain import routing
from noetl_planner.domain.decision import limits
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal, RunOutcome
from noetl_planner.domain.loops import loop_kinds, streams
from noetl_planner.domain.steps import (
    children,
    commands,
    increments,
    policies,
    step_end_events,
    waits,
)
from noetl_replay.state import RunState


def advance_execution(draft: DecisionDraft) -> None:
    """Start every activation that may start now; end the execution when nothing is left."""
    while not draft.state.is_terminal() and draft.state.cancelling_at is None:
        if draft.state.failure is not None:
            settle_failure(draft, draft.state.failure)
            return
        ready = find_ready_step(draft) if draft.state.paused_at is None else None
        if ready is None:
            break
        start_run(draft, ready)
    state = draft.state
    if state.is_terminal() or state.cancelling_at is not None:
        return
    if not state.runs and not state.tokens:
        draft.append_event(
            execution_events.PlaybookCompleted(
                step=state.last_step, result=_find_last_result(draft)
            )
        )


def find_ready_step(draft: DecisionDraft) -> str | None:
    """Choose a tokened step that no other live step can still reach, in workflow order.

    Steps that only wait for each other lie on a cycle: the earliest of them starts, and what
    follows the cycle goes on waiting.
    """
    state, program = draft.state, draft.program
    running = {run.step for run in state.runs.values()}
    waiting = sorted(
        (name for name in state.tokens if name not in running), key=program.order.__getitem__
    )
    live_steps = running | set(state.tokens)
    for name in waiting:
        if not any(program.can_reach(other, name) for other in live_steps if other != name):
            return name
    if running:
        return None
    for name in waiting:
        before = [other for other in waiting if other != name and program.can_reach(other, name)]
        if all(program.can_reach(name, other) for other in before):
            return name
    return None


def start_run(draft: DecisionDraft, name: str) -> None:
    """Take a step's tokens and begin its activation."""
    state = draft.state
    activation = state.activations + 1
    limit = draft.limits.activations_max
    if activation > limit:
        fail_execution(
            draft,
            ErrorObject(
                kind="limit",
                code="max_steps",
                step=name,
                message=f"more than {limit} step activations: "
                "raise limits.max_steps or end the cycle",
            ),
            step=name,
        )
        return
    run_id = ids.derive_run_id(state.execution_id, activation)
    came_from = state.tokens.get(name)
    expires_at, due_at, unusable = _compute_run_bounds(draft, name)
    draft.append_event(
        step_events.StepEnter(
            step=name,
            run_id=run_id,
            activation=activation,
            came_from=came_from,
            expires_at=expires_at,
            due_at=due_at,
        )
    )
    run = draft.state.runs[run_id]
    try:
        outcome = policies.admit_run(draft, run) or unusable or _start_run_work(draft, run)
    except Refusal as refusal:
        outcome = RunOutcome(status=RunStatus.FAILED, error=refusal.error)
    if outcome is not None:
        end_run(draft, run, outcome.status, error=outcome.error, notes=outcome.notes)


def _compute_run_bounds(
    draft: DecisionDraft, name: str
) -> tuple[datetime | None, datetime | None, RunOutcome | None]:
    """Return until when an activation may last and when it is late.

    Or how it ends because that cannot be told.
    """
    try:
        expires_at = limits.compute_run_expiry(draft, name)
        return expires_at, limits.compute_run_deadline(draft, name), None
    except Refusal as refusal:
        return None, None, RunOutcome(status=RunStatus.FAILED, error=refusal.error)


def _start_run_work(draft: DecisionDraft, run: RunState) -> RunOutcome | None:
    if (late := limits.find_run_timeout(draft, run)) is not None:
        return RunOutcome(status=RunStatus.FAILED, error=late)
    return loop_kinds.start_run_work(draft, run)


def end_run(
    draft: DecisionDraft,
    run: RunState,
    status: RunStatus,
    *,
    error: ErrorObject | None = None,
    notes: Sequence[str] = (),
    state_change: StateChanged | None = None,
) -> None:
    """Apply step `set`, choose arcs, place tokens, move the state: one transition."""
    if status is RunStatus.SKIPPED:
        draft.append_event(
            step_events.StepExit(step=run.step, run_id=run.run_id, status=status, notes=list(notes))
        )
        return
    if error is not None and draft.state.steps[run.step].error != error:
        # What the step gave before is not what it comes to now.
        draft.append_event(step_events.StepFailed(step=run.step, run_id=run.run_id, error=error))
    try:
        route = routing.route_run(draft, run, status, error)
    except Refusal as refusal:
        status, error = RunStatus.FAILED, refusal.error
        route = routing.Route(is_handled=False)
    if state_change is not None and status is RunStatus.COMPLETED and route.error is None:
        increments.move_state(draft, state_change)
    step_end_events.emit_custom_events(draft, run, status)
    for changed in route.objects:
        draft.append_event(changed)
    draft.append_event(
        step_events.StepExit(
            step=run.step,
            run_id=run.run_id,
            status=status,
            targets=route.targets,
            patch=route.patch,
            is_handled=route.is_handled,
            error=None if route.is_handled else (error or route.error),
            notes=route.notes,
            failure=error if streams.is_stream_step(draft, run.step) else None,
            tasks=run.tasks,
        )
    )


def settle_failure(draft: DecisionDraft, failure: ErrorObject) -> None:
    """End a failed execution: at once, or when in-flight work has drained."""
    mode = draft.program.playbook.executor.spec.policy.failure.mode
    # A loop whose items have all ended is in flight until its results are gathered.
    if mode == "drain" and draft.state.runs:
        return
    fail_execution(draft, failure, step=draft.state.failed_step)


def fail_execution(draft: DecisionDraft, error: ErrorObject, *, step: str | None) -> None:
    """Call off what is in flight and end the execution as failed."""
    cancel_open_work(draft, reason="execution failed")
    draft.append_event(execution_events.PlaybookFailed(error=error, step=step))


def cancel_open_work(draft: DecisionDraft, *, reason: str) -> None:
    """Call off every live command and activation."""
    for run in list(draft.state.runs.values()):
        cancel_run(draft, run, reason=reason)
        draft.append_event(
            step_events.StepExit(
                step=run.step, run_id=run.run_id, status=RunStatus.CANCELLED, tasks=run.tasks
            )
        )


def cancel_run(draft: DecisionDraft, run: RunState, *, reason: str) -> None:
    """Call off the live commands of one activation and close its stage."""
    for command_state in [
        command for command in draft.state.commands.values() if command.run_id == run.run_id
    ]:
        draft.to_stop[command_state.command_id] = None
        commands.cancel_command(draft, command_state, reason)
        children.cancel_child_of_command(draft, command_state, reason=reason)
    loop_kinds.close_stage_early(draft, run)


def _find_last_result(draft: DecisionDraft) -> ResultEnvelope | None:
    last = draft.state.last_step
    return draft.state.steps[last].result if last is not None else None


REASON = "execution cancelled"


def begin_cancellation(draft: DecisionDraft, fact: facts.CancelRequested) -> None:
    """Stop dispatching, ask workers to stop, and end at once when nothing is in flight."""
    if draft.state.cancelling_at is not None or draft.state.version == 0:
        return
    draft.append_event(
        execution_events.CancelRequested(
            reason=fact.reason, requested_by=fact.requested_by, cascade=fact.cascade
        )
    )
    if fact.cascade:
        children.cancel_children(draft, reason="its parent was cancelled")
    for command_id in list(draft.state.held):
        commands.cancel_command(draft, draft.state.commands[command_id], REASON)
    waits.cancel_parked_commands(draft, REASON)
    sent_ids = (command for command in draft.state.commands if command not in draft.to_send)
    draft.to_stop.update(dict.fromkeys(sent_ids))
    settle_cancellation(draft)


def settle_cancellation(draft: DecisionDraft) -> None:
    """End a cancelled execution when its work has stopped or the grace period is over."""
    state = draft.state
    if state.cancelling_at is None or state.is_terminal():
        return
    grace = timedelta(seconds=draft.limits.cancel_grace_s)
    if state.commands and draft.now < state.cancelling_at + grace:
        return
    cancel_open_work(draft, reason=REASON)
    draft.append_event(execution_events.ExecutionCancelled(reason=state.cancel_reason))
