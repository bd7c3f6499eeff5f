"""Quotas of tenants in memory."""

from noetl_contracts.identity.quotas import TenantQuota
from noetl_contracts.ids import TenantId
from noetl_contracts.status import ExecutionStatus
from noetl_storage.memory.store import MemoryStore

_LIVE = frozenset({ExecutionStatus.PENDING, ExecutionStatus.RUNNING, ExecutionStatus.PAUSED})


class MemoryQuotas:
    """Keeps what tenants may use."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def put_quota(self, quota: TenantQuota) -> None:
        """Keep what a tenant may use; an empty quota takes the bounds away."""
        self._store.quotas.pop(quota.tenant_id, None)
        if not quota.is_empty:
            self._store.quotas[quota.tenant_id] = quota

    async def find_quota(self, tenant_id: TenantId) -> TenantQuota | None:
        """Return what a tenant may use; None where nothing bounds it."""
        return self._store.quotas.get(tenant_id)

    async def list_quotas(self, *, quotas_max: int) -> list[TenantQuota]:
        """Return the quotas that there are, by tenant."""
        return [self._store.quotas[tenant] for tenant in sorted(self._store.quotas)][:quotas_max]

    async def count_running(self, tenant_id: TenantId, *, running_max: int) -> int:
        """Count the executions of a tenant that have not ended, up to `running_max`."""
        running: int = sum(
            row["tenant_id"] == tenant_id and row["status"] in _LIVE
            for row in self._store.row_by_key_by_surface.get("execution", {}).values()
        )
        return min(running, running_max)
