"""What events of `state` mean: the values that an execution read, and those that it moved."""

from msgspec import UNSET

from noetl_contracts.commands.state_values import StateRecord, StateValue
from noetl_contracts.events import state_events
from noetl_replay.state import ExecutionState


def apply_state(
    state: ExecutionState, event: state_events.StateRead | state_events.StateChanged
) -> None:
    """Apply what a step read of a state, or how its success moved it."""
    if isinstance(event, state_events.StateChanged):
        _remember_value(state, event.name, event.value, event.revision)
        return
    increment = event.increment
    state.runs[event.run_id].increment = increment
    # A backfill reads a range, and not the state.
    if not increment.is_backfill:
        value = StateValue(type=increment.type, value=increment.value)
        _remember_value(state, increment.name, value, increment.revision)


def _remember_value(state: ExecutionState, name: str, value: StateValue, revision: int) -> None:
    values = {} if state.values is UNSET else state.values
    values[name] = StateRecord(name=name, value=value, revision=revision)
    state.values = values
