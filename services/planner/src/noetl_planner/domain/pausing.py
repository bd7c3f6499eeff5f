"""Pauses: nothing is dispatched, what runs may finish, and bounds in time go on counting."""

from noetl_contracts import facts
from noetl_contracts.events import control
from noetl_contracts.events.command import RELEASED
from noetl_contracts.ids import CommandId
from noetl_planner.domain import issuing, timers
from noetl_planner.domain.draft import Draft


def pause(draft: Draft, fact: facts.PauseRequested) -> None:
    """Hold an execution; one that is held already, or being cancelled, stays as it is."""
    if draft.state.is_halted():
        return
    draft.emit(
        control.ExecutionPaused(
            request_id=fact.request_id, reason=fact.reason, requested_by=fact.requested_by
        )
    )
    draft.to_pause.update(dict.fromkeys(slots(draft)))


def resume(draft: Draft, fact: facts.ResumeRequested) -> None:
    """Send what was held back, and do what has become due meanwhile."""
    state = draft.state
    if state.paused_at is None or state.cancelling_at is not None:
        return
    held = list(state.held)
    draft.emit(control.ExecutionResumed(request_id=fact.request_id, requested_by=fact.requested_by))
    for command_id in held:
        # Under a further attempt: the reaper may have called this one lost while it was held.
        issuing.reissue(draft, draft.state.commands[command_id], RELEASED)
    timers.ring(draft, reason="resumed")


def slots(draft: Draft) -> list[CommandId]:
    """Return the live commands that would go on by themselves: slots, frame after frame."""
    state = draft.state
    return [
        live.command_id
        for live in state.commands.values()
        if live.slot is not None and live.command_id not in state.held
    ]
