"""Collects payloads that nobody refers to, one owner after the other."""

from datetime import datetime
from typing import Protocol

import structlog

from noetl_chassis.clock import Clock
from noetl_chassis.observability import instruments, names
from noetl_contracts.errors import NoetlError
from noetl_storage.ports.ledger_ports import Instances
from noetl_storage.ports.payload_ports import Owner, PayloadReferences

ROLE = "payload_collector"
SHELVED, RESTORED, PURGED, NAMED = "shelved", "restored", "purged", "named"

log = structlog.get_logger(__name__)


class SweepOutcome(Protocol):
    """What one look at an owner's payloads did."""

    shelved: int
    restored: int
    purged: int
    purged_bytes: int
    removed: int
    held_since: datetime | None


class PayloadSweeper(Protocol):
    """Looks at an owner's payloads."""

    async def sweep_owner(self, owner: Owner, *, now: datetime, is_dry_run: bool) -> SweepOutcome:
        """Put aside what nobody refers to, and purge what nobody has missed."""


class PayloadCollection:
    """Owns the collection of payloads; of all instances one does it at a time."""

    def __init__(
        self,
        collector: PayloadSweeper,
        *,
        references: PayloadReferences,
        instances: Instances,
        owner: str,
        lease_s: float,
        clock: Clock,
    ) -> None:
        self._collector = collector
        self._references = references
        self._instances = instances
        self._owner = owner
        self._lease_s = lease_s
        self._clock = clock

    async def sweep(self) -> bool:
        """Look at every owner's payloads if nobody else does; raises the first failure at the end.

        What one owner's payloads hold keeps nobody else's from being looked at.
        """
        if not await self._instances.claim_role(
            role=ROLE, owner=self._owner, lease_s=self._lease_s
        ):
            return False
        owners = await self._references.list_owners()
        failures = [failure for owner in owners if (failure := await self._sweep_owner(owner))]
        if failures:
            raise failures[0]
        return True

    async def _sweep_owner(self, owner: Owner) -> NoetlError | None:
        try:
            sweep_outcome = await self._collector.sweep_owner(
                owner, now=self._clock.now(), is_dry_run=False
            )
        except NoetlError as failure:
            log.warning(
                "payloads not collected",
                tenant_id=owner.tenant_id,
                organization_id=owner.organization_id,
                error=type(failure).__name__,
                reason=str(failure),
            )
            return failure
        _show_outcome(owner, sweep_outcome)
        return None


def _show_outcome(owner: Owner, sweep_outcome: SweepOutcome) -> None:
    counts = {
        SHELVED: sweep_outcome.shelved,
        RESTORED: sweep_outcome.restored,
        PURGED: sweep_outcome.purged,
        NAMED: sweep_outcome.removed,
    }
    for outcome, count in counts.items():
        if count:
            instruments.add_to_counter(
                names.PAYLOADS_COLLECTED, count, labels={names.OUTCOME: outcome}
            )
    instruments.add_to_counter(names.PAYLOADS_PURGED_BYTES, sweep_outcome.purged_bytes)
    if any(counts.values()):
        log.info(
            "payloads collected",
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
            held_since=sweep_outcome.held_since,
            **counts,
        )
