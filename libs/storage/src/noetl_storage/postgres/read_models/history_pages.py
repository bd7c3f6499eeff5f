"""Pages of executions for the API and the console, each read by one query."""

from collections.abc import Sequence

import asyncpg

from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import envelope, upcasters
from noetl_storage.ports import history_ports
from noetl_storage.ports.history_ports import HistoryPage, ShownEvent
from noetl_storage.postgres import event_rows, queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("history_pages")


class PostgresHistoryPages:
    """Shows columns as they are; an event of an older shape, or kept as text, is read first."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
        rows = await self._database.fetch_rows(
            _QUERIES["find_page"],
            int(execution_id),
            tenant_id,
            organization_id,
            after_version,
            events_max,
        )
        if not rows:
            return None
        first = rows[0]
        parent = first["parent_execution_id"]
        return HistoryPage(
            path=first["path"],
            status=first["execution_status"],
            catalog_version=first["catalog_version"],
            parent_execution_id=None if parent is None else str(parent),
            version=first["version"],
            events=[_build_event(record) for record in rows if record["event_id"] is not None],
        )

    async def find_run_events(
        self, execution_id: ExecutionId, *, after_version: int, runs_max: int
    ) -> list[ShownEvent]:
        """Return what began and ended runs of steps, of those that began after a version."""
        rows = await self._database.fetch_rows(
            _QUERIES["find_run_events"], int(execution_id), after_version, runs_max
        )
        return [_build_event(record) for record in rows]

    async def list_check_events(
        self, execution_ids: Sequence[ExecutionId], *, step: str | None, events_max: int
    ) -> list[ShownEvent]:
        """Return ends of runs of steps that tell of checks, the latest first."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_check_events"], [int(item) for item in execution_ids], step, events_max
        )
        return [_build_event(record) for record in rows]


def _build_event(record: asyncpg.Record) -> ShownEvent:
    is_as_kept = (
        record["exact"] is None
        and upcasters.get_current_version(record["schema_name"]) == record["schema_version"]
    )
    if not is_as_kept:
        return history_ports.build_shown_event(event_rows.build_envelope(record))
    tenant_id = TenantId(record["tenant_id"])
    organization_id = OrganizationId(record["organization_id"])
    execution_id = ExecutionId(str(record["execution_id"]))
    context, result = record["context"], record["result"]
    return ShownEvent(
        event_id=EventId(str(record["event_id"])),
        tenant_id=tenant_id,
        organization_id=organization_id,
        execution_id=execution_id,
        stream_id=record["stream_id"],
        version=record["stream_version"],
        aggregate_id=record["aggregate_id"],
        aggregate_type=record["aggregate_type"],
        event_type=record["event_type"],
        schema_name=record["schema_name"],
        schema_version=record["schema_version"],
        event_time=record["event_time"],
        ingest_time=record["created_at"],
        producer=envelope.upcast_producer(record["producer"], tenant_id, organization_id),
        causation_id=record["causation_id"],
        correlation_id=envelope.upcast_correlation(record["correlation_id"], execution_id),
        idempotency_key=record["idempotency_key"],
        payload_ref=record["payload_ref"] or envelope.find_payload_ref(context, result),
        context=context,
        result=result,
        error=record["error"],
        meta=record["meta"] or {},
    )
