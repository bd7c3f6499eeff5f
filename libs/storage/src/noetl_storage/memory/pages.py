"""Executions for people, in memory."""

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_storage import page_ports
from noetl_storage.memory.projections import MemoryProjections
from noetl_storage.memory.store import MemoryStore
from noetl_storage.page_ports import HistoryPage, RunEvents, ShownEvent


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
            one
            for one in self._store.history_by_execution.get(execution_id, [])
            if one.stream_version > after_version
        ]
        return HistoryPage(
            path=row["path"],
            status=row["status"],
            catalog_version=row.get("catalog_version"),
            parent_execution_id=row.get("parent_execution_id"),
            version=head.version,
            events=[page_ports.shown(one) for one in history[:events_max]],
        )

    async def find_run_events(
        self, execution_id: ExecutionId, *, after_version: int, runs_max: int
    ) -> list[ShownEvent]:
        """Return what began and ended runs of steps, of those that began after a version."""
        history = self._store.history_by_execution.get(execution_id, [])
        chosen = RunEvents(runs_max=runs_max)
        chosen.take(one for one in history if one.stream_version > after_version)
        return chosen.found
