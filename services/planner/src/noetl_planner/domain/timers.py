"""Timers of an execution: the next instant at which it needs a decision, and what is due then."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from noetl_contracts.requests import facts
from noetl_contracts.status import RunStatus
from noetl_planner.domain import command_facts, executions
from noetl_planner.domain.decision import limits
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.loops import loop_kinds, streams
from noetl_planner.domain.steps import children, waits
from noetl_replay.state import RunState


def find_next_wake(draft: DecisionDraft) -> datetime | None:
    """Return the earliest instant at which a timer is due, or None."""
    return None if draft.state.is_terminal() else min(_iterate_instants(draft), default=None)


def run_due_timers(draft: DecisionDraft, *, reason: str) -> None:
    """Run timers that are due; after a long silence, repeat requests that may have been lost."""
    if draft.state.version == 0:
        return
    executions.settle_cancellation(draft)
    if draft.state.is_terminal() or draft.state.cancelling_at is not None:
        return
    if (late := limits.find_execution_timeout(draft)) is not None:
        failure = draft.state.failure
        executions.fail_execution(draft, failure or late, step=draft.state.failed_step)
        return
    command_facts.withdraw_untaken_offers(draft)
    for run in list(draft.state.runs.values()):
        if draft.state.is_terminal():
            return
        if run.run_id in draft.state.runs:
            _check_run_timers(draft, run)
    waits.expire_waits(draft)
    if reason == facts.STALLED:
        children.repeat_child_requests(draft)
    executions.advance_execution(draft)


def _check_run_timers(draft: DecisionDraft, run: RunState) -> None:
    late = limits.find_run_timeout(draft, run)
    if streams.is_stream_run(run):
        ended = (
            streams.continue_stream(draft, run)
            if late is None
            else streams.abort_stream(draft, run, late)
        )
        if ended is not None:
            executions.end_run(draft, ended.run, ended.outcome.status, error=ended.outcome.error)
        return
    if late is not None:
        executions.cancel_run(draft, run, reason="step timed out")
        executions.end_run(draft, run, RunStatus.FAILED, error=late)
        return
    if run.loop is None or run.loop.is_finished:
        return
    outcome = loop_kinds.continue_loop(draft, run)
    if outcome is not None:
        executions.end_run(draft, run, outcome.status, error=outcome.error)


def _iterate_instants(draft: DecisionDraft) -> Iterator[datetime]:
    state = draft.state
    if state.cancelling_at is not None:
        yield state.cancelling_at + timedelta(seconds=draft.limits.cancel_grace_s)
        return
    if state.expires_at is not None:
        yield state.expires_at
    yield from limits.iterate_deadlines(draft)
    waiting_until = waits.find_next_deadline(draft)
    if waiting_until is not None:
        yield waiting_until
    yield from state.offered.values()
    for run in state.runs.values():
        if run.expires_at is not None:
            yield run.expires_at
        if state.paused_at is None:
            yield from loop_kinds.iterate_wake_times(draft, run)
