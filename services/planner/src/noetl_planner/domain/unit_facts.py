"""Facts about frames that the planner minted: ended, failed to run at all, lost."""

from noetl_contracts import facts
from noetl_planner.domain import cancelling, flow, looping, reducing, units
from noetl_planner.domain.draft import Draft
from noetl_replay.state import CommandState, RunState


def closed(draft: Draft, live: CommandState, fact: facts.FrameClosed) -> None:
    """Accept a frame's outcome."""
    run = _run(draft, live)
    if run is None:
        return
    take = reducing.close if _reduces(run) else units.close
    if take(draft, run, live, fact):
        _progress(draft, run)


def failed(draft: Draft, live: CommandState, fact: facts.CommandFailed) -> None:
    """Accept that a frame could not be run."""
    run = _run(draft, live)
    if run is None:
        return
    take = reducing.fail if _reduces(run) else units.fail
    if take(draft, run, live, fact):
        _progress(draft, run)


def lost(draft: Draft, live: CommandState, fact: facts.CommandLost, reason: str) -> None:
    """Accept that a frame's worker is gone."""
    run = _run(draft, live)
    if run is None:
        return
    take = reducing.lose if _reduces(run) else units.lose
    if take(draft, run, live, reason, is_release=fact.is_release):
        _progress(draft, run)


def _run(draft: Draft, live: CommandState) -> RunState | None:
    return draft.state.runs.get(live.run_id)


def _reduces(run: RunState) -> bool:
    return run.loop is not None and run.loop.mode == "reduce"


def _progress(draft: Draft, run: RunState) -> None:
    if draft.state.cancelling_at is not None:
        cancelling.settle(draft)
        return
    outcome = looping.go_on(draft, run)
    if outcome is not None:
        flow.end_run(draft, run, outcome.status, error=outcome.error)
        flow.advance(draft)
