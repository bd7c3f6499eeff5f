"""What events mean to places: where results were made, and which commands are on offer."""

from noetl_contracts import placement
from noetl_contracts.events import command
from noetl_replay.state import CommandState, ExecutionState, StepState


def offer(state: ExecutionState, live: CommandState, event: command.CommandIssued) -> None:
    """Remember where a command's inputs were made, and whose it may become until when."""
    live.source_locality, live.target = event.source_locality, event.target
    if event.offered_until is not None:
        state.offered[event.command_id] = event.offered_until


def withdraw(state: ExecutionState, live: CommandState) -> None:
    """Forget to whom an attempt was offered: the next one is anybody's."""
    live.target = None
    state.offered.pop(live.command_id, None)


def take(state: ExecutionState, event: command.CommandStarted) -> None:
    """Note that somebody has a command, so that it is on offer no more."""
    state.offered.pop(event.command_id, None)


def remember_place(state: ExecutionState, event: command.CommandCompleted) -> None:
    """Remember where a step's result was made; of many units, what their places share."""
    live = state.commands[event.command_id]
    made = placement.place(live.locality)
    run = state.runs.get(event.run_id)
    loop = run.loop if run is not None else None
    if loop is not None:
        made = made if loop.locality is None else placement.common(loop.locality, made)
        loop.locality = made
    state.steps.setdefault(event.step, StepState(step=event.step)).locality = made
