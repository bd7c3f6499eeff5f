"""Informational events that a step appends at its end (language, 11.1)."""

from noetl_contracts.events import control
from noetl_contracts.status import RunStatus
from noetl_planner.domain.draft import Draft
from noetl_replay.state import RunState


def announce(draft: Draft, run: RunState, status: RunStatus) -> None:
    """Append the step's own events, each name once."""
    names = draft.program.steps[run.step].spec.policy.emit.events
    for name in dict.fromkeys(names):
        draft.emit(
            control.CustomEvent(name=name, step=run.step, run_id=run.run_id, status=str(status))
        )
