"""Business objects across executions on PostgreSQL."""

from typing import Any

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.envelope import Envelope
from noetl_storage.postgres import event_rows, queries
from noetl_storage.postgres.database import Database
from noetl_storage.postgres.read_models.projections import record_to_row

_QUERIES = queries.load_queries("business_objects")


class PostgresBusinessObjects:
    """Reads the rows that projectors write."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_objects(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        object_type: str | None = None,
        execution_id: ExecutionId | None = None,
        has_deleted: bool = True,
        after: tuple[str, str] = ("", ""),
        objects_max: int,
    ) -> list[dict[str, Any]]:
        """Return the latest row of each object, by type and id, behind a type and id."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_objects"],
            tenant_id,
            organization_id,
            object_type,
            None if execution_id is None else int(execution_id),
            has_deleted,
            *after,
            objects_max,
        )
        return [record_to_row(record) for record in rows]

    async def list_object_rows(
        self,
        object_type: str,
        object_id: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        rows_max: int,
    ) -> list[dict[str, Any]]:
        """Return an object's rows, one an execution that changed it, the latest first."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_of_object"],
            tenant_id,
            organization_id,
            object_type,
            object_id,
            rows_max,
        )
        return [record_to_row(record) for record in rows]

    async def list_object_changes(
        self,
        execution_id: ExecutionId,
        object_id: str,
        *,
        after_version: int,
        until_version: int,
        changes_max: int,
    ) -> list[Envelope] | None:
        """Return the events of one object in a range of versions, in order, and no others."""
        if not await self._database.get_value(_QUERIES["has_beginning"], int(execution_id)):
            return None
        rows = await self._database.fetch_rows(
            _QUERIES["list_changes"],
            int(execution_id),
            object_id,
            after_version,
            until_version,
            changes_max,
        )
        return [event_rows.build_envelope(record) for record in rows]
