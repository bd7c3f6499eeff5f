"""What is asked of storage about messages that were given up: who did what about them."""

from typing import Protocol

from noetl_contracts.dead_letters import DeadLetterAct
from noetl_contracts.ids import OrganizationId, TenantId


class DeadLetterLog(Protocol):
    """Keeps for good who sent dead letters again, and who dropped them."""

    async def record(self, act: DeadLetterAct) -> DeadLetterAct:
        """Keep an act; return it with its number and time."""

    async def find_last(
        self, sequence: int, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> DeadLetterAct | None:
        """Return the latest act on a letter, or None."""

    async def list_acts(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        before: int | None = None,
        acts_max: int,
    ) -> list[DeadLetterAct]:
        """Return acts, the latest first, perhaps those before a number."""
