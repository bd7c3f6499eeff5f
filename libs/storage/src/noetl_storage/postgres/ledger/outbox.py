"""The outbox on PostgreSQL."""

from collections.abc import Sequence

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import OutboxRow
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("outbox")


class PostgresOutbox:
    """Leases committed messages to publishers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim_rows(self, *, owner: str, lease_s: float, rows_max: int) -> list[OutboxRow]:
        """Lease unleased rows and rows whose lease has ended, in order within an execution."""
        rows = await self._database.fetch_rows(_QUERIES["claim"], owner, lease_s, rows_max)
        return [
            OutboxRow(
                outbox_id=record["outbox_id"],
                execution_id=ExecutionId(str(record["execution_id"])),
                subject=record["subject"],
                message_id=record["message_id"],
                data=record["data"],
                codec=record["codec"],
            )
            for record in rows
        ]

    async def settle_rows(self, outbox_ids: Sequence[int]) -> None:
        """Remove rows whose publication was acknowledged."""
        if outbox_ids:
            await self._database.execute_statement(_QUERIES["settle"], list(outbox_ids))

    async def release_rows(self, outbox_ids: Sequence[int]) -> None:
        """Give rows back that could not be published."""
        if outbox_ids:
            await self._database.execute_statement(_QUERIES["release"], list(outbox_ids))

    async def count_backlog(self) -> tuple[int, float]:
        """Return how many rows wait and the age of the oldest in seconds."""
        (row,) = await self._database.fetch_rows(_QUERIES["backlog"])
        return row["rows_waiting"], row["oldest_s"]
