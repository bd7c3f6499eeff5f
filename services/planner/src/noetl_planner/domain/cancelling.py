"""Cancellation: from the request on nothing is dispatched; the end comes when work has stopped."""

from datetime import timedelta

from noetl_contracts import facts
from noetl_contracts.events import execution
from noetl_planner.domain import children, flow, issuing, parking
from noetl_planner.domain.draft import Draft

REASON = "execution cancelled"


def begin(draft: Draft, fact: facts.CancelRequested) -> None:
    """Stop dispatching, ask workers to stop, and end at once when nothing is in flight."""
    if draft.state.cancelling_at is not None or draft.state.version == 0:
        return
    draft.emit(
        execution.CancelRequested(
            reason=fact.reason, requested_by=fact.requested_by, cascade=fact.cascade
        )
    )
    if fact.cascade:
        children.cancel_all(draft, reason="its parent was cancelled")
    for command_id in list(draft.state.held):
        issuing.call_off(draft, draft.state.commands[command_id], REASON)
    parking.call_off(draft, REASON)
    taken = (one for one in draft.state.commands if one not in draft.to_send)
    draft.to_stop.update(dict.fromkeys(taken))
    settle(draft)


def settle(draft: Draft) -> None:
    """End a cancelled execution when its work has stopped or the grace period is over."""
    state = draft.state
    if state.cancelling_at is None or state.is_terminal():
        return
    grace = timedelta(seconds=draft.limits.cancel_grace_s)
    if state.commands and draft.now < state.cancelling_at + grace:
        return
    flow.cancel_open_work(draft, reason=REASON)
    draft.emit(execution.ExecutionCancelled(reason=state.cancel_reason))
