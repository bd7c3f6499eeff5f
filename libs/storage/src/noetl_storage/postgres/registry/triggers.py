"""Triggers on PostgreSQL."""

import asyncpg

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.requests.triggers import Trigger
from noetl_storage.postgres import event_rows, queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("triggers")


class PostgresTriggers:
    """Keeps what messages start."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_trigger(self, trigger: Trigger) -> None:
        """Keep a trigger under its name, replacing the one before."""
        await self._database.execute_statement(
            _QUERIES["put"],
            trigger.tenant_id,
            trigger.organization_id,
            trigger.name,
            trigger.subject,
            trigger.path,
            trigger.version,
            trigger.inputs,
            trigger.body_bytes_max,
            trigger.is_enabled,
            trigger.filter,
            trigger.max_in_flight,
            trigger.actor,
        )

    async def find_trigger(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Trigger | None:
        """Return a trigger by name, or None."""
        row = await self._database.find_row(_QUERIES["find"], tenant_id, organization_id, name)
        return None if row is None else _build_trigger(row)

    async def list_triggers(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, triggers_max: int
    ) -> list[Trigger]:
        """Return the triggers in the order of their names."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_triggers"], tenant_id, organization_id, triggers_max
        )
        return [_build_trigger(row) for row in rows]

    async def remove_trigger(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a trigger; False when there was none."""
        row = await self._database.find_row(_QUERIES["remove"], tenant_id, organization_id, name)
        return row is not None

    async def claim_place(
        self, trigger: Trigger, message_key: str, execution_id: ExecutionId, *, unasked_s: float
    ) -> ExecutionId | None:
        """Claim a place for a message's execution; None while all are taken."""
        execution_number = await self._database.get_value(
            _QUERIES["claim_place"],
            trigger.tenant_id,
            trigger.organization_id,
            trigger.name,
            message_key,
            int(execution_id),
            unasked_s,
        )
        return None if execution_number is None else ExecutionId(str(execution_number))

    async def release_place(self, trigger: Trigger, message_key: str) -> None:
        """Give the place of a message back; what is not there is no error."""
        await self._database.execute_statement(
            _QUERIES["release_place"],
            trigger.tenant_id,
            trigger.organization_id,
            trigger.name,
            message_key,
        )


def _build_trigger(row: asyncpg.Record) -> Trigger:
    return Trigger(
        tenant_id=TenantId(row["tenant_id"]),
        organization_id=OrganizationId(row["organization_id"]),
        name=row["name"],
        subject=row["subject"],
        path=row["path"],
        version=row["version"],
        inputs=row["inputs"],
        body_bytes_max=row["body_bytes_max"],
        is_enabled=row["is_enabled"],
        filter=row["filter"],
        max_in_flight=row["max_in_flight"],
        actor=event_rows.read_actor_column(row["actor"]),
    )
