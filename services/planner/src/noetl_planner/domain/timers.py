"""When an execution wants to be looked at although nothing happened, and what is done then."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from noetl_contracts import facts
from noetl_contracts.status import RunStatus
from noetl_planner.domain import (
    bounds,
    cancelling,
    children,
    command_facts,
    flow,
    looping,
    parking,
    streaming,
)
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
    if draft.state.is_terminal() or draft.state.cancelling_at is not None:
        return
    if (late := bounds.execution_error(draft)) is not None:
        failure = draft.state.failure
        flow.fail_execution(draft, failure or late, step=draft.state.failed_step)
        return
    command_facts.withdraw_untaken(draft)
    for run in list(draft.state.runs.values()):
        if draft.state.is_terminal():
            return
        if run.run_id in draft.state.runs:
            _ring_run(draft, run)
    parking.expire(draft)
    if reason == facts.STALLED:
        children.ask_again(draft)
    flow.advance(draft)


def _ring_run(draft: Draft, run: RunState) -> None:
    late = bounds.run_error(draft, run)
    if streaming.is_part(run):
        ended = streaming.go_on(draft, run) if late is None else streaming.abort(draft, run, late)
        if ended is not None:
            flow.end_run(draft, ended.run, ended.outcome.status, error=ended.outcome.error)
        return
    if late is not None:
        flow.cancel_run(draft, run, reason="step timed out")
        flow.end_run(draft, run, RunStatus.FAILED, error=late)
        return
    if run.loop is None or run.loop.is_finished:
        return
    outcome = looping.go_on(draft, run)
    if outcome is not None:
        flow.end_run(draft, run, outcome.status, error=outcome.error)


def _instants(draft: Draft) -> Iterator[datetime]:
    state = draft.state
    if state.cancelling_at is not None:
        yield state.cancelling_at + timedelta(seconds=draft.limits.cancel_grace_s)
        return
    if state.expires_at is not None:
        yield state.expires_at
    waiting_until = parking.deadline(draft)
    if waiting_until is not None:
        yield waiting_until
    yield from state.offered.values()
    for run in state.runs.values():
        if run.expires_at is not None:
            yield run.expires_at
        if state.paused_at is None:
            yield from looping.wakes(draft, run)
