"""What events mean to lineage: which stored result led to which.

Lineage hops over runs without a stored result: the one before a result is the nearest stored one
on the way back. It follows what an exit placed its tokens for, so a step that has run again since
does not change what its earlier run led to.
"""

from noetl_contracts.events import loop_events, step_events
from noetl_contracts.ids import EventId
from noetl_contracts.ledger.envelope import Envelope
from noetl_replay.state import ExecutionState, RunState, StoredResult


def start_run_lineage(state: ExecutionState, at: Envelope, event: step_events.StepEnter) -> None:
    """Take over what led to a run that has just begun."""
    run = state.runs[event.run_id]
    run.entered_version = at.stream_version
    run.parent_ref_id = state.lineage.pop(event.step, None)


def remember_run_result(
    state: ExecutionState,
    at: Envelope,
    event: step_events.CallDone
    | step_events.CallError
    | loop_events.LoopDone
    | loop_events.LoopFailed,
) -> None:
    """Remember a run's own result, where it is stored."""
    run = state.runs.get(event.run_id)
    if run is None:
        return
    reference = event.result.reference if event.result is not None else None
    run.ref_id = at.event_id if reference is not None else None
    if reference is None:
        return
    state.changes.results[at.event_id] = StoredResult(
        ref_id=at.event_id,
        run_id=run.run_id,
        step=run.step,
        is_error=isinstance(event, step_events.CallError | loop_events.LoopFailed),
        entered_version=run.entered_version,
        reference=reference,
        parent_ref_id=_find_parent_result(state, run),
        created_at=at.event_time,
    )


def pass_on_lineage(state: ExecutionState, event: step_events.StepExit) -> None:
    """Hand a run's lineage to what it placed tokens for; called while the run is still there."""
    run = state.runs.get(event.run_id)
    latest = None if run is None else run.ref_id or _find_parent_result(state, run)
    for target in event.targets:
        if latest is None:
            state.lineage.pop(target, None)
        else:
            state.lineage[target] = latest


def _find_parent_result(state: ExecutionState, run: RunState) -> EventId | None:
    """Return the stored result that led to a run: of its stream's producer, if it handles one."""
    producer = state.runs.get(run.feed.producer) if run.feed is not None else None
    if producer is None:
        return run.parent_ref_id
    return producer.ref_id or producer.parent_ref_id
