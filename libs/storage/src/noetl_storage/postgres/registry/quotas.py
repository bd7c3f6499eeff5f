"""Quotas of tenants on PostgreSQL."""

from noetl_contracts import codec
from noetl_contracts.identity.quotas import TenantQuota
from noetl_contracts.ids import TenantId
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("quotas")


class PostgresQuotas:
    """Keeps what tenants may use."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_quota(self, quota: TenantQuota) -> None:
        """Keep what a tenant may use; an empty quota takes the bounds away."""
        if quota.is_empty:
            await self._database.execute_statement(_QUERIES["remove_quota"], quota.tenant_id)
        else:
            await self._database.execute_statement(
                _QUERIES["put_quota"], quota.tenant_id, quota.running_max, quota.calls_per_s
            )

    async def find_quota(self, tenant_id: TenantId) -> TenantQuota | None:
        """Return what a tenant may use; None where nothing bounds it."""
        row = await self._database.find_row(_QUERIES["find_quota"], tenant_id)
        return None if row is None else codec.convert_value(dict(row), TenantQuota)

    async def list_quotas(self, *, quotas_max: int) -> list[TenantQuota]:
        """Return the quotas that there are, by tenant."""
        rows = await self._database.fetch_rows(_QUERIES["list_quotas"], quotas_max)
        return [codec.convert_value(dict(row), TenantQuota) for row in rows]

    async def count_running(self, tenant_id: TenantId, *, running_max: int) -> int:
        """Count the executions of a tenant that have not ended, up to `running_max`."""
        row = await self._database.get_row(_QUERIES["count_running"], tenant_id, running_max)
        running: int = row["running"]
        return running
