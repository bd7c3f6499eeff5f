"""Acts on dead letters in memory."""

from msgspec import structs

from noetl_contracts.dead_letters import DeadLetterAct
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.memory.store import MemoryStore


class MemoryDeadLetterLog:
    """Keeps who sent dead letters again, and who dropped them."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def record(self, act: DeadLetterAct) -> DeadLetterAct:
        """Keep an act; return it with its number and time."""
        acts = self._store.dead_letter_acts
        kept = structs.replace(act, act_id=len(acts) + 1, acted_at=self._store.now())
        acts.append(kept)
        return kept

    async def find_last(
        self, sequence: int, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> DeadLetterAct | None:
        """Return the latest act on a letter, or None."""
        owned = self._list_owned((tenant_id, organization_id))
        return next((act for act in owned if act.sequence == sequence), None)

    async def list_acts(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        before: int | None = None,
        acts_max: int,
    ) -> list[DeadLetterAct]:
        """Return acts, the latest first, perhaps those before a number."""
        owned = self._list_owned((tenant_id, organization_id))
        return [act for act in owned if before is None or act.act_id < before][:acts_max]

    def _list_owned(self, owner: tuple[TenantId, OrganizationId]) -> list[DeadLetterAct]:
        return [
            act
            for act in reversed(self._store.dead_letter_acts)
            if (act.tenant_id, act.organization_id) == owner
        ]
