"""How many units of a loop run at once, changed while it runs: its expression, rendered again.

A write to `ctx` from outside may change what `max_in_flight` gives. More units start at once; of
fewer, those that run go on to their end, and slots of a cursor end after the frame they are at.
"""

from noetl_contracts.events import loop as events
from noetl_planner.domain import cursors, evaluation, flow, inside, items, looping
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Refusal
from noetl_replay.state import RunState


def resize_all(draft: Draft) -> None:
    """Look at every live loop again; what no longer gives a number keeps the one it has."""
    if draft.state.cancelling_at is not None:
        return
    for run in list(draft.state.runs.values()):
        if draft.state.is_terminal():
            return
        if run.run_id in draft.state.runs and _resized(draft, run):
            _go_on(draft, run)


def _resized(draft: Draft, run: RunState) -> bool:
    definition = draft.program.steps[run.step]
    live, loop = run.loop, definition.loop
    if live is None or live.is_finished or loop is None or inside.is_local(definition):
        return False
    if loop.spec.mode == "sequential" or not isinstance(loop.spec.max_in_flight, str):
        return False
    try:
        wanted = items.in_flight(draft, loop, evaluation.scope(draft), run.step)
    except Refusal:
        return False
    if wanted == live.max_in_flight:
        return False
    draft.emit(events.LoopResized(step=run.step, run_id=run.run_id, max_in_flight=wanted))
    return True


def _go_on(draft: Draft, run: RunState) -> None:
    if run.loop is not None and run.loop.slots:
        cursors.match_slots(draft, run)
    outcome = looping.go_on(draft, run)
    if outcome is not None:
        flow.end_run(draft, run, outcome.status, error=outcome.error)
        flow.advance(draft)
