"""Webhooks in memory."""

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.webhooks import Webhook
from noetl_storage.memory.store import MemoryStore


class MemoryWebhooks:
    """Keeps what calls from outside start."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def put(self, webhook: Webhook) -> None:
        """Keep a webhook under its name, replacing the one before."""
        place = (webhook.tenant_id, webhook.organization_id, webhook.name)
        self._store.webhook_by_place[place] = webhook

    async def find(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Webhook | None:
        """Return a webhook by name, or None."""
        return self._store.webhook_by_place.get((tenant_id, organization_id, name))

    async def list_webhooks(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, webhooks_max: int
    ) -> list[Webhook]:
        """Return the webhooks in the order of their names."""
        owner = (tenant_id, organization_id)
        places = sorted(place for place in self._store.webhook_by_place if place[:2] == owner)
        return [self._store.webhook_by_place[place] for place in places][:webhooks_max]

    async def remove(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a webhook; False when there was none."""
        place = (tenant_id, organization_id, name)
        return self._store.webhook_by_place.pop(place, None) is not None
