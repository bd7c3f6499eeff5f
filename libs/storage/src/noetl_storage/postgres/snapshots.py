"""Remembered folds on PostgreSQL."""

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import Snapshot
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load("snapshots")


class PostgresSnapshots:
    """Keeps the latest snapshot of each execution."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, execution_id: ExecutionId) -> Snapshot | None:
        """Return the latest snapshot, or None."""
        row = await self._database.find_row(_QUERIES["find"], int(execution_id))
        if row is None:
            return None
        return Snapshot(
            execution_id=execution_id,
            version=row["version"],
            fold_version=row["fold_version"],
            upcaster_digest=row["upcaster_digest"],
            checksum=row["checksum"],
            state=row["state"],
        )

    async def put(self, snapshot: Snapshot) -> None:
        """Keep a snapshot unless a later one is there."""
        await self._database.execute(
            _QUERIES["put"],
            int(snapshot.execution_id),
            snapshot.version,
            snapshot.fold_version,
            snapshot.upcaster_digest,
            snapshot.checksum,
            snapshot.state,
        )
