"""What events mean to commands that wait for something else, and to children."""

from datetime import timedelta
from typing import assert_never

from noetl_contracts.commands import placement
from noetl_contracts.commands.task_metrics import MetricsByTask, add_task_metrics
from noetl_contracts.commands.waits import Resume
from noetl_contracts.events import command_events
from noetl_contracts.ids import RunId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.status import CommandStatus
from noetl_replay.state import ChildState, CommandState, ExecutionState, ParkedState, StepState

ParkingEvent = (
    command_events.CommandParked
    | command_events.CommandResumed
    | command_events.ChildStarted
    | command_events.ChildEnded
)


def apply_wait(state: ExecutionState, at: Envelope, event: ParkingEvent) -> None:
    """Apply an event about waiting."""
    match event:
        case command_events.CommandParked():
            _park_command(state, at, event)
        case command_events.CommandResumed():
            _resume_command(state, at, event)
        case command_events.ChildStarted():
            state.children[event.child_execution_id] = ChildState(
                child_execution_id=event.child_execution_id,
                command_id=event.command_id,
                step=event.step,
                wait=event.wait,
            )
            if event.command_id in state.commands:
                state.commands[event.command_id].child_id = event.child_execution_id
        case command_events.ChildEnded():
            state.children.pop(event.child_execution_id, None)
        case _:
            assert_never(event)


def _park_command(state: ExecutionState, at: Envelope, event: command_events.CommandParked) -> None:
    command_state = _touch_command(state, event)
    command_state.status, command_state.heard_at = CommandStatus.PARKED, at.event_time
    command_state.parked = ParkedState(wait=event.wait, resume_ref=event.resume_ref)
    # What waits is not held: the end of its wait sends it out.
    state.held.pop(event.command_id, None)
    state.deadlines[event.command_id] = at.event_time + timedelta(seconds=event.wait.timeout_s)


def _resume_command(
    state: ExecutionState, at: Envelope, event: command_events.CommandResumed
) -> None:
    command_state = _touch_command(state, event)
    state.deadlines.pop(event.command_id, None)
    assert command_state.parked is not None, "only a parked command is resumed"
    command_state.resume = Resume(
        key=event.key,
        ref=command_state.parked.resume_ref,
        status=event.status,
        child_execution_id=event.child_execution_id,
        result=event.result,
        error=event.error,
    )
    command_state.parked = None
    command_state.attempt, command_state.status = event.attempt, CommandStatus.ISSUED
    command_state.heard_at, command_state.worker_id = at.event_time, None
    if state.paused_at is not None and state.cancelling_at is None:
        state.held[event.command_id] = None


def _touch_command(
    state: ExecutionState, event: command_events.CommandParked | command_events.CommandResumed
) -> CommandState:
    command_state = state.commands[event.command_id]
    state.changes.commands[event.command_id] = command_state
    return command_state


def remember_offer(
    state: ExecutionState, command_state: CommandState, event: command_events.CommandIssued
) -> None:
    """Remember where a command's inputs were made, and whose it may become until when."""
    command_state.source_locality, command_state.target = event.source_locality, event.target
    if event.offered_until is not None:
        state.offered[event.command_id] = event.offered_until


def withdraw_offer(state: ExecutionState, command_state: CommandState) -> None:
    """Forget to whom an attempt was offered: the next one is anybody's."""
    command_state.target = None
    state.offered.pop(command_state.command_id, None)


def end_offer(state: ExecutionState, event: command_events.CommandStarted) -> None:
    """Note that somebody has a command, so that it is on offer no more."""
    state.offered.pop(event.command_id, None)


def remember_result_place(state: ExecutionState, event: command_events.CommandCompleted) -> None:
    """Remember where a step's result was made; of many units, what their places share."""
    command_state = state.commands[event.command_id]
    result_place = placement.extract_place(command_state.locality)
    run = state.runs.get(event.run_id)
    loop = run.loop if run is not None else None
    if loop is not None:
        result_place = (
            result_place
            if loop.locality is None
            else placement.find_common_place(loop.locality, result_place)
        )
        loop.locality = result_place
    state.steps.setdefault(event.step, StepState(step=event.step)).locality = result_place


def add_run_metrics(state: ExecutionState, run_id: RunId, tasks: MetricsByTask) -> None:
    """Add what a command or a frame says that it did."""
    run = state.runs.get(run_id)
    if tasks and run is not None:
        run.tasks = add_task_metrics(run.tasks, tasks)
