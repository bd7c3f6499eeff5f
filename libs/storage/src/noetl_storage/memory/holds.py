"""Policies and holds in memory, where no history ever leaves."""

from msgspec import structs

from noetl_contracts.ids import ExecutionId
from noetl_storage.memory.store import MemoryStore
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.ports.retention_ports import (
    ArchiveUnit,
    RetentionAction,
    RetentionHold,
    RetentionPolicy,
)


class MemoryHolds:
    """Keeps them for as long as the process lives."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._holds: list[RetentionHold] = []
        self._policies: dict[tuple[str, str], RetentionPolicy] = {}
        self._units: list[ArchiveUnit] = []

    async def place_hold(
        self, owner: Owner, *, execution_id: ExecutionId | None, reason: str, who: str
    ) -> int:
        """Hold an execution, or all of an owner; return the hold, or the one that is open."""
        place = self._find_open(owner, execution_id)
        if place is not None:
            return self._holds[place].hold_id
        hold = RetentionHold(
            hold_id=len(self._holds) + 1,
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
            execution_id=execution_id,
            reason=reason,
            held_by=who,
            held_at=self._store.now(),
        )
        self._holds.append(hold)
        return hold.hold_id

    async def release_hold(
        self, owner: Owner, *, execution_id: ExecutionId | None, reason: str, who: str
    ) -> int | None:
        """End the open hold and return it; None when there is none."""
        place = self._find_open(owner, execution_id)
        if place is None:
            return None
        self._holds[place] = structs.replace(
            self._holds[place],
            released_by=who,
            release_reason=reason,
            released_at=self._store.now(),
        )
        return self._holds[place].hold_id

    async def list_holds(
        self, owner: Owner, *, has_released: bool, holds_max: int
    ) -> list[RetentionHold]:
        """Return the holds of an owner, the latest first."""
        retention_holds = [
            hold
            for hold in reversed(self._holds)
            if _get_owner(hold) == owner and (has_released or hold.released_at is None)
        ]
        return retention_holds[:holds_max]

    async def find_policy(self, owner: Owner) -> RetentionPolicy | None:
        """Return an owner's own policy, or None."""
        return self._policies.get((owner.tenant_id, owner.organization_id))

    async def set_policy(
        self, owner: Owner, *, keep_days: int, action: RetentionAction, who: str
    ) -> None:
        """Set an owner's policy."""
        self._policies[owner.tenant_id, owner.organization_id] = RetentionPolicy(
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
            keep_days=keep_days,
            action=action,
            set_by=who,
            set_at=self._store.now(),
        )

    async def list_units(self, owner: Owner, *, units_max: int) -> list[ArchiveUnit]:
        """Return the units of an owner, the latest first."""
        archive_units = [
            unit
            for unit in reversed(self._units)
            if (unit.tenant_id, unit.organization_id) == (owner.tenant_id, owner.organization_id)
        ]
        return archive_units[:units_max]

    def _find_open(self, owner: Owner, execution_id: ExecutionId | None) -> int | None:
        for place, hold in enumerate(self._holds):
            is_meant = (_get_owner(hold), hold.execution_id) == (owner, execution_id)
            if is_meant and hold.released_at is None:
                return place
        return None


def _get_owner(hold: RetentionHold) -> Owner:
    return Owner(tenant_id=hold.tenant_id, organization_id=hold.organization_id)
