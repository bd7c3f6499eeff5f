"""What events mean to commands that wait for something else, and to children."""

from datetime import timedelta
from typing import assert_never

from noetl_contracts.envelope import Envelope
from noetl_contracts.events import parking
from noetl_contracts.parking import Resume
from noetl_contracts.status import CommandStatus
from noetl_replay.state import ChildState, CommandState, ExecutionState, ParkedState

ParkingEvent = (
    parking.CommandParked | parking.CommandResumed | parking.ChildStarted | parking.ChildEnded
)


def apply(state: ExecutionState, at: Envelope, event: ParkingEvent) -> None:
    """Apply an event about waiting."""
    match event:
        case parking.CommandParked():
            _park(state, at, event)
        case parking.CommandResumed():
            _resume(state, at, event)
        case parking.ChildStarted():
            state.children[event.child_execution_id] = ChildState(
                child_execution_id=event.child_execution_id,
                command_id=event.command_id,
                step=event.step,
                wait=event.wait,
            )
            if event.command_id in state.commands:
                state.commands[event.command_id].child_id = event.child_execution_id
        case parking.ChildEnded():
            state.children.pop(event.child_execution_id, None)
        case _:
            assert_never(event)


def _park(state: ExecutionState, at: Envelope, event: parking.CommandParked) -> None:
    live = _touched(state, event)
    live.status, live.heard_at = CommandStatus.PARKED, at.event_time
    live.parked = ParkedState(wait=event.wait, resume_ref=event.resume_ref)
    state.deadlines[event.command_id] = at.event_time + timedelta(seconds=event.wait.timeout_s)


def _resume(state: ExecutionState, at: Envelope, event: parking.CommandResumed) -> None:
    live = _touched(state, event)
    state.deadlines.pop(event.command_id, None)
    assert live.parked is not None, "only a parked command is resumed"
    live.resume = Resume(
        key=event.key,
        ref=live.parked.resume_ref,
        status=event.status,
        child_execution_id=event.child_execution_id,
        result=event.result,
        error=event.error,
    )
    live.parked = None
    live.attempt, live.status = event.attempt, CommandStatus.ISSUED
    live.heard_at, live.worker_id = at.event_time, None
    if state.paused_at is not None and state.cancelling_at is None:
        state.held[event.command_id] = None


def _touched(
    state: ExecutionState, event: parking.CommandParked | parking.CommandResumed
) -> CommandState:
    live = state.commands[event.command_id]
    state.changes.commands[event.command_id] = live
    return live
