"""The token game: activations begin, end and route until nothing is live."""

from collections.abc import Sequence
from datetime import datetime

from noetl_contracts import ids
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import execution, step
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.status import RunStatus
from noetl_planner.domain import (
    admission,
    announcing,
    bounds,
    children,
    issuing,
    looping,
    routing,
    streaming,
)
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Outcome, Refusal
from noetl_replay.state import RunState


def advance(draft: Draft) -> None:
    """Start every activation that may start now; end the execution when nothing is left."""
    while not draft.state.is_terminal() and draft.state.cancelling_at is None:
        if draft.state.failure is not None:
            settle_failure(draft, draft.state.failure)
            return
        ready = next_ready(draft) if draft.state.paused_at is None else None
        if ready is None:
            break
        start_run(draft, ready)
    state = draft.state
    if state.is_terminal() or state.cancelling_at is not None:
        return
    if not state.runs and not state.tokens:
        draft.emit(execution.PlaybookCompleted(step=state.last_step, result=_last_result(draft)))


def next_ready(draft: Draft) -> str | None:
    """Choose a tokened step that no other live step can still reach, in workflow order.

    Steps that only wait for each other lie on a cycle: the earliest of them starts, and what
    follows the cycle goes on waiting.
    """
    state, program = draft.state, draft.program
    running = {run.step for run in state.runs.values()}
    waiting = sorted(
        (name for name in state.tokens if name not in running), key=program.order.__getitem__
    )
    live = running | set(state.tokens)
    for name in waiting:
        if not any(program.can_reach(other, name) for other in live if other != name):
            return name
    if running:
        return None
    for name in waiting:
        before = [other for other in waiting if other != name and program.can_reach(other, name)]
        if all(program.can_reach(name, other) for other in before):
            return name
    return None


def start_run(draft: Draft, name: str) -> None:
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
    run_id = ids.run_id(state.execution_id, activation)
    came_from = state.tokens.get(name)
    expires_at, unusable = _expires_at(draft, name)
    draft.emit(
        step.StepEnter(
            step=name,
            run_id=run_id,
            activation=activation,
            came_from=came_from,
            expires_at=expires_at,
        )
    )
    run = draft.state.runs[run_id]
    try:
        outcome = admission.admit(draft, run) or unusable or _begin_work(draft, run)
    except Refusal as refusal:
        outcome = Outcome(status=RunStatus.FAILED, error=refusal.error)
    if outcome is not None:
        end_run(draft, run, outcome.status, error=outcome.error, notes=outcome.notes)


def _expires_at(draft: Draft, name: str) -> tuple[datetime | None, Outcome | None]:
    """Return until when an activation may last, or how it ends because that cannot be told."""
    try:
        return bounds.of_run(draft, name), None
    except Refusal as refusal:
        return None, Outcome(status=RunStatus.FAILED, error=refusal.error)


def _begin_work(draft: Draft, run: RunState) -> Outcome | None:
    if (late := bounds.run_error(draft, run)) is not None:
        return Outcome(status=RunStatus.FAILED, error=late)
    return looping.start(draft, run)


def end_run(
    draft: Draft,
    run: RunState,
    status: RunStatus,
    *,
    error: ErrorObject | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Apply step `set`, choose arcs, place tokens: one transition."""
    if status is RunStatus.SKIPPED:
        draft.emit(
            step.StepExit(step=run.step, run_id=run.run_id, status=status, notes=list(notes))
        )
        return
    if error is not None and draft.state.steps[run.step].error != error:
        # What the step gave before is not what it comes to now.
        draft.emit(step.StepFailed(step=run.step, run_id=run.run_id, error=error))
    try:
        route = routing.route(draft, run, status, error)
    except Refusal as refusal:
        status, error = RunStatus.FAILED, refusal.error
        route = routing.Route(is_handled=False)
    announcing.announce(draft, run, status)
    for changed in route.objects:
        draft.emit(changed)
    draft.emit(
        step.StepExit(
            step=run.step,
            run_id=run.run_id,
            status=status,
            targets=route.targets,
            patch=route.patch,
            is_handled=route.is_handled,
            error=None if route.is_handled else (error or route.error),
            notes=route.notes,
            failure=error if streaming.streams(draft, run.step) else None,
            tasks=run.tasks,
        )
    )


def settle_failure(draft: Draft, failure: ErrorObject) -> None:
    """End a failed execution: at once, or when in-flight work has drained."""
    mode = draft.program.playbook.executor.spec.policy.failure.mode
    # A loop whose items have all ended is in flight until its results are gathered.
    if mode == "drain" and draft.state.runs:
        return
    fail_execution(draft, failure, step=draft.state.failed_step)


def fail_execution(draft: Draft, error: ErrorObject, *, step: str | None) -> None:
    """Call off what is in flight and end the execution as failed."""
    cancel_open_work(draft, reason="execution failed")
    draft.emit(execution.PlaybookFailed(error=error, step=step))


def cancel_open_work(draft: Draft, *, reason: str) -> None:
    """Call off every live command and activation."""
    for run in list(draft.state.runs.values()):
        cancel_run(draft, run, reason=reason)
        draft.emit(
            step.StepExit(
                step=run.step, run_id=run.run_id, status=RunStatus.CANCELLED, tasks=run.tasks
            )
        )


def cancel_run(draft: Draft, run: RunState, *, reason: str) -> None:
    """Call off the live commands of one activation and close its stage."""
    for live in [one for one in draft.state.commands.values() if one.run_id == run.run_id]:
        draft.to_stop[live.command_id] = None
        issuing.call_off(draft, live, reason)
        children.cancel_of(draft, live, reason=reason)
    looping.close_early(draft, run)


def _last_result(draft: Draft) -> ResultEnvelope | None:
    last = draft.state.last_step
    return draft.state.steps[last].result if last is not None else None
