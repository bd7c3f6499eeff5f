"""Partitions of the ledger on PostgreSQL."""

from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("partitions")


class PostgresPartitions:
    """Keeps the ledger ready for executions to come."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ensure_partitions(self, months: int) -> int:
        """Make the partitions of the coming months; return how many were missing."""
        partition_count: int = await self._database.get_value(_QUERIES["ensure"], months)
        return partition_count
