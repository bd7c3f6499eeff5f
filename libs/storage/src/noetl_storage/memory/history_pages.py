"""Read models in memory: business objects, and pages of executions with their runs."""

import copy
from typing import Any

from noetl_contracts.events.execution_events import BusinessObjectChanged
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.envelope import Envelope
from noetl_storage.memory.projections import MemoryProjections
from noetl_storage.memory.store import MemoryStore, Row
from noetl_storage.ports import history_ports
from noetl_storage.ports.history_ports import HistoryPage, RunEventFilter, ShownEvent

SURFACE = "business_object"


class MemoryObjects:
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
        found = [
            latest[place]
            for place in sorted(latest)
            if place > after and (has_deleted or not latest[place]["is_deleted"])
        ]
        return copy.deepcopy(found[:objects_max])

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


class MemoryHistoryPages:
    """Reads rows and histories of one store."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._projections = MemoryProjections(store)

    async def find_page(
        self,
        execution_id: ExecutionId,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        after_version: int,
        events_max: int,
    ) -> HistoryPage | None:
        """Return a projected execution of an owner with events after a version, of one instant."""
        rows = await self._projections.list_rows("execution", execution_id)
        head = self._store.head_by_execution.get(execution_id)
        owner = (tenant_id, organization_id)
        if head is None or not rows:
            return None
        row = rows[0]
        if (row["tenant_id"], row["organization_id"]) != owner:
            return None
        history = [
            envelope
            for envelope in self._store.history_by_execution.get(execution_id, [])
            if envelope.stream_version > after_version
        ]
        return HistoryPage(
            path=row["path"],
            status=row["status"],
            catalog_version=row.get("catalog_version"),
            parent_execution_id=row.get("parent_execution_id"),
            version=head.version,
            events=[history_ports.build_shown_event(item) for item in history[:events_max]],
        )

    async def find_run_events(
        self, execution_id: ExecutionId, *, after_version: int, runs_max: int
    ) -> list[ShownEvent]:
        """Return what began and ended runs of steps, of those that began after a version."""
        history = self._store.history_by_execution.get(execution_id, [])
        chosen = RunEventFilter(runs_max=runs_max)
        chosen.add_history(
            envelope for envelope in history if envelope.stream_version > after_version
        )
        return chosen.found
