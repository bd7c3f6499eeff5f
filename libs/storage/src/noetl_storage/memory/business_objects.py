"""Business objects in memory, as playbooks have changed them."""

import copy
from typing import Any

from noetl_contracts.events.execution_events import BusinessObjectChanged
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.envelope import Envelope
from noetl_storage.memory.store import MemoryStore, Row

SURFACE = "business_object"


class MemoryBusinessObjects:
    """Reads the rows that projectors write."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

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
        latest: dict[tuple[str, str], Row] = {}
        for row in self._list_owned_rows(tenant_id, organization_id):
            if object_type in (None, row["object_type"]) and execution_id in (
                None,
                row["execution_id"],
            ):
                latest.setdefault(_get_object_key(row), row)
        objects = [
            latest[place]
            for place in sorted(latest)
            if place > after and (has_deleted or not latest[place]["is_deleted"])
        ]
        return copy.deepcopy(objects[:objects_max])

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
        rows = [
            row
            for row in self._list_owned_rows(tenant_id, organization_id)
            if _get_object_key(row) == (object_type, object_id)
        ]
        return copy.deepcopy(rows[:rows_max])

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
        history = self._store.history_by_execution.get(execution_id, [])
        if not history or history[0].stream_version != 1:
            return None
        envelopes = [
            envelope
            for envelope in history[after_version:until_version]
            if isinstance(envelope.event, BusinessObjectChanged)
            and envelope.event.object_id == object_id
        ]
        return envelopes[:changes_max]

    def _list_owned_rows(self, tenant_id: TenantId, organization_id: OrganizationId) -> list[Row]:
        """Return an owner's rows, the latest first."""
        rows = self._store.row_by_key_by_surface.get(SURFACE, {}).values()
        owned_rows = [
            row
            for row in rows
            if (row["tenant_id"], row["organization_id"]) == (tenant_id, organization_id)
        ]
        owned_rows.sort(key=lambda row: (row["updated_at"], int(row["execution_id"])), reverse=True)
        return owned_rows


def _get_object_key(row: Row) -> tuple[str, str]:
    return row["object_type"], row["object_id"]
