"""When an execution wants to be looked at although nothing happened, and what is done then."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from noetl_contracts import facts
from noetl_contracts.errors import ErrorObject
from noetl_contracts.status import RunStatus
from noetl_planner.domain import cancelling, children, cursors, evaluation, flow, items, parking
from noetl_planner.domain.draft import Draft
from noetl_replay.state import RunState


def wake_at(draft: Draft) -> datetime | None:
    """Return the earliest instant at which a timer is due, or None."""
    return None if draft.state.is_terminal() else min(_instants(draft), default=None)


def ring(draft: Draft, *, reason: str) -> None:
    """Do what is due; after a long silence, ask again for what may have been lost."""
    if draft.state.version == 0:
        return
    cancelling.settle(draft)
    for run in list(draft.state.runs.values()):
        if draft.state.is_terminal() or draft.state.cancelling_at is not None:
            return
        _ring_run(draft, run)
    parking.expire(draft)
    if reason == facts.STALLED:
        children.ask_again(draft)
    flow.advance(draft)


def _ring_run(draft: Draft, run: RunState) -> None:
    expires = _expires_at(draft, run)
    if expires is not None and expires <= draft.now:
        _expire(draft, run)
        return
    if run.loop is None or run.loop.is_finished:
        return
    look = items.go_on if run.loop.stage_id is None else cursors.look_again
    outcome = look(draft, run)
    if outcome is not None:
        flow.end_run(draft, run, outcome.status, error=outcome.error)


def _expire(draft: Draft, run: RunState) -> None:
    error = ErrorObject(
        kind="timeout",
        code="TIMEOUT",
        step=run.step,
        message=f"step {run.step!r} exceeded its time",
    )
    flow.cancel_run(draft, run, reason="step timed out")
    flow.end_run(draft, run, RunStatus.FAILED, error=error)


def _expires_at(draft: Draft, run: RunState) -> datetime | None:
    step = draft.program.steps[run.step]
    bound = step.spec.policy.lifecycle.timeout_s
    bound = step.spec.timeout if bound is None else bound
    if bound is None:
        return None
    names = evaluation.scope(draft)
    rendered = evaluation.render(bound, names, step=run.step, field="spec.timeout")
    return run.entered_at + timedelta(seconds=float(rendered))


def _instants(draft: Draft) -> Iterator[datetime]:
    state = draft.state
    if state.cancelling_at is not None:
        yield state.cancelling_at + timedelta(seconds=draft.limits.cancel_grace_s)
        return
    waiting_until = parking.deadline(draft)
    if waiting_until is not None:
        yield waiting_until
    for run in state.runs.values():
        expires = _expires_at(draft, run)
        if expires is not None:
            yield expires
        if run.loop is not None and run.loop.stage_id is not None:
            for slot in run.loop.slots:
                due = cursors.due_at(draft, run, slot)
                if due is not None:
                    yield due
