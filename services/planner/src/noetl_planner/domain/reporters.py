"""Who observed what an event states: the worker that reported it, by its locator."""

from functools import lru_cache
from typing import Any

from noetl_contracts import envelope_fields, locators
from noetl_contracts.errors import LocatorError
from noetl_contracts.events import command, frame, parking, stream
from noetl_contracts.facts import CommandStarted, Fact
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_replay.state import ExecutionState

# A worker says itself what it is called.
_REMEMBERED_CHARACTERS_MAX = 1024
# Events that state what a worker did; every other event states what a planner decided.
REPORTED_EVENTS = frozenset(
    {
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
    }
)


def find_reporter(state: ExecutionState, fact: Fact) -> str | None:
    """Return the worker that reported a fact as a producer, None where no worker did."""
    worker_id: str | None = getattr(fact, "worker_id", None)
    if worker_id is None:
        return None
    told = fact.worker_locator if isinstance(fact, CommandStarted) else _locator_of(state, fact)
    names = worker_id, told, state.tenant_id, state.organization_id
    if len(worker_id) + len(told or "") > _REMEMBERED_CHARACTERS_MAX:
        return _name_producer(*names)
    return _remember_producer(*names)


# Facts of the same few workers follow each other.
@lru_cache(maxsize=1024)
def _remember_producer(
    worker_id: str, told: str | None, tenant_id: TenantId, organization_id: OrganizationId
) -> str:
    return _name_producer(worker_id, told, tenant_id, organization_id)


def _name_producer(
    worker_id: str, told: str | None, tenant_id: TenantId, organization_id: OrganizationId
) -> str:
    if told is None or not _is_worker(told, worker_id):
        told = locators.process("worker", worker_id, tenant_id, organization_id)
    return envelope_fields.shorten_producer(told, tenant_id, organization_id)


def _is_worker(locator: str, worker_id: str) -> bool:
    """Tell whether a locator is a worker's own: it may not pass for somebody else."""
    try:
        return locators.parse(locator).thing() == ("worker", (worker_id,))
    except LocatorError:
        return False


def _locator_of(state: ExecutionState, fact: Any) -> str | None:
    """Return what the worker of a command said when it started it."""
    live = state.commands.get(fact.command_id)
    return live.worker_locator if live is not None and live.worker_id == fact.worker_id else None
