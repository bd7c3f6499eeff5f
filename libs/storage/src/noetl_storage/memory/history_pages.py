"""Pages of executions with their runs, in memory."""

from collections.abc import Sequence

from noetl_contracts.events.step_events import StepExit
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_storage.memory.projections import MemoryProjections
from noetl_storage.memory.store import MemoryStore
from noetl_storage.ports import history_ports
from noetl_storage.ports.history_ports import HistoryPage, RunEventFilter, ShownEvent


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
        run_event_filter = RunEventFilter(runs_max=runs_max)
        run_event_filter.add_history(
            envelope for envelope in history if envelope.stream_version > after_version
        )
        return run_event_filter.found

    async def list_check_events(
        self, execution_ids: Sequence[ExecutionId], *, step: str | None, events_max: int
    ) -> list[ShownEvent]:
        """Return ends of runs of steps that tell of checks, the latest first."""
        found = [
            history_ports.build_shown_event(item)
            for execution_id in sorted(execution_ids, key=int, reverse=True)
            for item in reversed(self._store.history_by_execution.get(execution_id, []))
            if isinstance(item.event, StepExit)
            and any(task.checks for task in item.event.tasks.values())
            and step in {None, item.event.step}
        ]
        return found[:events_max]
