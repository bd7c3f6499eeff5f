"""What deadlines mean: what is late since when, and when that ended."""

from msgspec import UNSET, structs

from noetl_contracts.events.execution_events import DeadlinePassed
from noetl_contracts.ids import RunId
from noetl_contracts.ledger.envelope import Envelope
from noetl_replay.state import ExecutionState, LateMark

# Of what was late the latest are kept: a cycle may be late again and again.
LATE_MAX = 32


def pass_deadline(state: ExecutionState, event: DeadlinePassed) -> None:
    """Note that the execution, or an activation of a step, is late; its deadline is over."""
    if event.run_id is None:
        state.due_at = UNSET
    elif event.run_id in state.runs:
        state.runs[event.run_id].due_at = UNSET
    mark = LateMark(since=event.due_at, step=event.step, run_id=event.run_id)
    marks = [] if state.late is UNSET else state.late
    state.late = [*marks, mark][-LATE_MAX:]


def end_run_mark(state: ExecutionState, at: Envelope, run_id: RunId) -> None:
    """Note when an activation that was late has ended."""
    if state.late is not UNSET:
        state.late = [
            structs.replace(mark, ended_at=at.event_time) if mark.run_id == run_id else mark
            for mark in state.late
        ]


def end_marks(state: ExecutionState, at: Envelope) -> None:
    """Note when an execution has ended, of which something was still late."""
    state.due_at = UNSET
    if state.late is not UNSET:
        state.late = [
            structs.replace(mark, ended_at=at.event_time) if mark.ended_at is None else mark
            for mark in state.late
        ]
