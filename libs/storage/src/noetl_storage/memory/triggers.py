"""Triggers in memory."""

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.triggers import Trigger
from noetl_storage.memory.store import MemoryStore


class MemoryTriggers:
    """Keeps what messages start."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def put(self, trigger: Trigger) -> None:
        """Keep a trigger under its name, replacing the one before."""
        place = (trigger.tenant_id, trigger.organization_id, trigger.name)
        self._store.trigger_by_place[place] = trigger

    async def find(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Trigger | None:
        """Return a trigger by name, or None."""
        return self._store.trigger_by_place.get((tenant_id, organization_id, name))

    async def list_triggers(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, triggers_max: int
    ) -> list[Trigger]:
        """Return the triggers in the order of their names."""
        owner = (tenant_id, organization_id)
        places = sorted(place for place in self._store.trigger_by_place if place[:2] == owner)
        return [self._store.trigger_by_place[place] for place in places][:triggers_max]

    async def remove(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a trigger; False when there was none."""
        place = (tenant_id, organization_id, name)
        return self._store.trigger_by_place.pop(place, None) is not None
