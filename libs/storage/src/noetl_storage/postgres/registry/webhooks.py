"""Webhooks on PostgreSQL."""

import asyncpg

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.requests.webhooks import Webhook
from noetl_storage.postgres import event_rows, queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("webhooks")


class PostgresWebhooks:
    """Keeps what calls from outside start."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_webhook(self, webhook: Webhook) -> None:
        """Keep a webhook under its name, replacing the one before."""
        await self._database.execute_statement(
            _QUERIES["put"],
            webhook.tenant_id,
            webhook.organization_id,
            webhook.name,
            webhook.path,
            webhook.version,
            webhook.credential,
            webhook.inputs,
            webhook.body_bytes_max,
            webhook.is_enabled,
            webhook.actor,
        )

    async def find_webhook(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Webhook | None:
        """Return a webhook by name, or None."""
        row = await self._database.find_row(_QUERIES["find"], tenant_id, organization_id, name)
        return None if row is None else _build_webhook(row)

    async def list_webhooks(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, webhooks_max: int
    ) -> list[Webhook]:
        """Return the webhooks in the order of their names."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_webhooks"], tenant_id, organization_id, webhooks_max
        )
        return [_build_webhook(row) for row in rows]

    async def remove_webhook(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a webhook; False when there was none."""
        row = await self._database.find_row(_QUERIES["remove"], tenant_id, organization_id, name)
        return row is not None


def _build_webhook(row: asyncpg.Record) -> Webhook:
    return Webhook(
        tenant_id=TenantId(row["tenant_id"]),
        organization_id=OrganizationId(row["organization_id"]),
        name=row["name"],
        path=row["path"],
        version=row["version"],
        credential=row["credential"],
        inputs=row["inputs"],
        body_bytes_max=row["body_bytes_max"],
        is_enabled=row["is_enabled"],
        actor=event_rows.read_actor_column(row["actor"]),
    )
