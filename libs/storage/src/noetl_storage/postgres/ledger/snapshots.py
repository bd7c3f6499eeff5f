"""Snapshots on PostgreSQL."""

from typing import Any

import asyncpg

from noetl_contracts.ids import EventId, ExecutionId
from noetl_contracts.ledger.records import Snapshot
from noetl_storage.ports.history_ports import compute_thinned_span
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("snapshots")


class PostgresSnapshots:
    """Keeps the latest snapshot of each execution."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_snapshot(self, execution_id: ExecutionId) -> Snapshot | None:
        """Return the latest snapshot, or None."""
        row = await self._database.find_row(_QUERIES["find"], int(execution_id))
        return None if row is None else _build_snapshot(execution_id, row)

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot unless a later one is there."""
        await self._database.execute_statement(_QUERIES["put"], *_build_columns(snapshot))


class PostgresPast:
    """Keeps snapshots of earlier positions, spread over each history."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_snapshot_before(
        self, execution_id: ExecutionId, version: int
    ) -> Snapshot | None:
        """Return the latest snapshot that is not beyond a version, or None."""
        row = await self._database.find_row(_QUERIES["find_before"], int(execution_id), version)
        return None if row is None else _build_snapshot(execution_id, row)

    async def keep_snapshot(self, snapshot: Snapshot, *, spacing_versions: int) -> None:
        """Keep a snapshot unless one stands so close before it; thin out those before."""
        await self._database.execute_statement(
            _QUERIES["keep"], *_build_columns(snapshot), spacing_versions
        )
        span = compute_thinned_span(spacing_versions)
        if span > 1:
            await self._database.execute_statement(
                _QUERIES["thin"], int(snapshot.execution_id), span
            )

    async def prune_snapshots(self, *, ended_s: float, executions_max: int) -> int:
        """Forget the past of executions that ended so long ago; return how many snapshots."""
        return len(await self._database.fetch_rows(_QUERIES["prune"], ended_s, executions_max))

    async def forget_snapshots(self, execution_id: ExecutionId) -> None:
        """Forget what is remembered of an execution's past."""
        await self._database.execute_statement(_QUERIES["forget"], int(execution_id))


def _build_snapshot(execution_id: ExecutionId, row: asyncpg.Record) -> Snapshot:
    return Snapshot(
        execution_id=execution_id,
        version=row["version"],
        fold_version=row["fold_version"],
        upcaster_digest=row["upcaster_digest"],
        checksum=row["checksum"],
        state=row["state"],
        event_id=None if row["event_id"] is None else EventId(str(row["event_id"])),
        payload_digest=row["payload_digest"],
        encryption=row["encryption"],
    )


def _build_columns(snapshot: Snapshot) -> tuple[Any, ...]:
    return (
        int(snapshot.execution_id),
        snapshot.version,
        snapshot.fold_version,
        snapshot.upcaster_digest,
        snapshot.checksum,
        snapshot.state,
        None if snapshot.event_id is None else int(snapshot.event_id),
        snapshot.payload_digest,
        snapshot.encryption,
    )
