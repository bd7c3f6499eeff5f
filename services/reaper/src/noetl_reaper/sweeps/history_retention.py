"""Lets histories leave the ledger whose time there is over."""

from collections.abc import Callable
from typing import Protocol

import structlog

from noetl_chassis.observability import instruments, names
from noetl_storage.ports.ledger_ports import Instances

_RELEASE_S = 0.001

log = structlog.get_logger(__name__)


class RetentionStep(Protocol):
    """A unit that has come to a status, and what left the ledger on the way there."""

    @property
    def status(self) -> str:
        """Where it stands."""

    @property
    def histories(self) -> int:
        """How many histories have left."""

    @property
    def events(self) -> int:
        """How many events have left."""


class HistoryArchiver(Protocol):
    """Archives what is due, and takes it out of the ledger."""

    async def archive_all_due(self, tell: Callable[[RetentionStep], None]) -> None:
        """Do all that is due; raises what the stores raise."""


class HistoryRetention:
    """Owns the way out of the ledger; of all instances one does it at a time."""

    def __init__(
        self,
        archives: HistoryArchiver,
        *,
        instances: Instances,
        role: str,
        owner: str,
        lease_s: float,
    ) -> None:
        self._archives = archives
        self._instances = instances
        self._role = role
        self._owner = owner
        self._lease_s = lease_s

    async def sweep(self) -> bool:
        """Let go what is due if nobody else does; raises what the stores raise."""
        if not await self._instances.claim_role(
            role=self._role, owner=self._owner, lease_s=self._lease_s
        ):
            return False
        try:
            await self._archives.archive_all_due(_show_step)
        finally:
            # `noetl retention run` need not wait for this instance's next look.
            await self._instances.claim_role(role=self._role, owner=self._owner, lease_s=_RELEASE_S)
        return True


def _show_step(step: RetentionStep) -> None:
    if step.events:
        instruments.add_to_counter(names.EVENTS_RETIRED, step.events)
    log.info(
        "histories leave the ledger",
        status=str(step.status),
        histories=step.histories,
        events=step.events,
    )
