"""Who observed what an event states: the worker that reported it, by its locator."""

from typing import Any

from noetl_contracts import envelope_fields, locators
from noetl_contracts.events import command, frame, parking, stream
from noetl_contracts.facts import CommandStarted, Fact
from noetl_replay.state import ExecutionState

# Events that state what a worker did; every other event states what a planner decided.
REPORTED_EVENTS = (
    command.CommandStarted,
    command.CommandHeartbeat,
    command.CommandCompleted,
    command.CommandFailed,
    parking.CommandParked,
    frame.FrameStarted,
    frame.FrameHeartbeat,
    frame.FrameCommitted,
    frame.FrameFailed,
    stream.CallPartial,
)


def find_reporter(state: ExecutionState, fact: Fact) -> str | None:
    """Return the worker that reported a fact as a producer, None where no worker did."""
    worker_id: str | None = getattr(fact, "worker_id", None)
    if worker_id is None:
        return None
    told = fact.worker_locator if isinstance(fact, CommandStarted) else _locator_of(state, fact)
    place = state.tenant_id, state.organization_id
    if told is None or not locators.is_locator(told):
        told = locators.process("worker", worker_id, *place)
    return envelope_fields.shorten_producer(told, *place)


def _locator_of(state: ExecutionState, fact: Any) -> str | None:
    """Return what the worker of a command said when it started it."""
    live = state.commands.get(fact.command_id)
    return live.worker_locator if live is not None and live.worker_id == fact.worker_id else None
