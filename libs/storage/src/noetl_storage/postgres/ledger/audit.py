"""Histories as PostgreSQL keeps them, and where cuts fall in them."""

from collections.abc import Sequence
from datetime import datetime

from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import HistoryHead
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_storage.ports.history_ports import TimeBucket
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.postgres import event_rows, queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("audit")


class PostgresLedgerAudit:
    """Reads every column, so that one which was changed beside the sealed text is seen too."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_stored_events(
        self, execution_id: ExecutionId, *, after_version: int = 0, events_max: int = 1000
    ) -> list[StoredEvent]:
        """Return at most `events_max` events after a version as they are kept, in order."""
        rows = await self._database.fetch_rows(
            _QUERIES["read_stored"], int(execution_id), after_version, events_max
        )
        return [event_rows.build_stored_event(record) for record in rows]

    async def read_histories(
        self,
        execution_ids: Sequence[ExecutionId],
        *,
        after: tuple[ExecutionId, int],
        events_max: int,
    ) -> list[tuple[ExecutionId, int, StoredEvent]]:
        """Return events of many histories as they are kept, each with the place it stands at."""
        rows = await self._database.fetch_rows(
            _QUERIES["read_many"],
            [int(execution_id) for execution_id in execution_ids],
            int(after[0]),
            after[1],
            events_max,
        )
        return [
            (
                ExecutionId(str(record["execution_id"])),
                record["stream_version"],
                event_rows.build_stored_event(record),
            )
            for record in rows
        ]

    async def find_owner(self, execution_id: ExecutionId) -> Owner | None:
        """Return whose a history is, or None before it began; an owner outlives its events."""
        record = await self._database.find_row(_QUERIES["find_owner"], int(execution_id))
        return None if record is None else Owner(**record)

    async def list_histories(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        after: ExecutionId | None = None,
        heads_max: int,
    ) -> list[HistoryHead]:
        """Return where the histories of a tenant end, by execution id, after one of them."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_histories"], tenant_id, organization_id, int(after or 0), heads_max
        )
        return [
            HistoryHead(
                execution_id=ExecutionId(str(record["execution_id"])),
                version=record["version"],
                checksum=record["checksum"],
            )
            for record in rows
        ]

    async def find_version_at(self, execution_id: ExecutionId, at: datetime) -> int:
        """Return the latest version whose event time is not after an instant; 0 for none."""
        version: int = await self._database.get_value(
            _QUERIES["find_version_at"], int(execution_id), at
        )
        return version

    async def find_version_of(self, execution_id: ExecutionId, event_id: EventId) -> int | None:
        """Return the version of an event, or None when the history has no such event."""
        version: int | None = await self._database.get_value(
            _QUERIES["find_version_of"], int(execution_id), int(event_id)
        )
        return version

    async def list_buckets(self, execution_id: ExecutionId, *, buckets: int) -> list[TimeBucket]:
        """Cut the time of a run into equal spans and return those with events, in order."""
        rows = await self._database.fetch_rows(_QUERIES["list_buckets"], int(execution_id), buckets)
        return [TimeBucket(**dict(record)) for record in rows]
