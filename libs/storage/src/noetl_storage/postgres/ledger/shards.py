"""Shard leases on PostgreSQL."""

from collections.abc import Sequence

import asyncpg

from noetl_contracts.ledger.records import ShardLease
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("shards")


class PostgresShardLeases:
    """Leases shards to planners by the database's clock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim_shards(
        self, *, owner: str, lease_s: float, shards_max: int, shard_count: int
    ) -> list[ShardLease]:
        """Take free and expired shards up to `shards_max` held; return all that are held."""
        rows = await self._database.fetch_rows(
            _QUERIES["claim"], owner, lease_s, shards_max, shard_count
        )
        return _build_leases(rows)

    async def extend_leases(self, *, owner: str, lease_s: float) -> list[ShardLease]:
        """Extend what the owner still holds and return it."""
        return _build_leases(await self._database.fetch_rows(_QUERIES["extend"], owner, lease_s))

    async def release_shards(self, *, owner: str, shards: Sequence[int]) -> None:
        """Give shards back at once."""
        await self._database.execute_statement(_QUERIES["release"], owner, list(shards))

    async def list_owners(self) -> dict[str, int]:
        """Return every owner with a live lease and how many shards it holds."""
        rows = await self._database.fetch_rows(_QUERIES["list_owners"])
        return {record["owner_instance"]: record["shards"] for record in rows}


def _build_leases(records: list[asyncpg.Record]) -> list[ShardLease]:
    leases = [
        ShardLease(
            shard=record["shard_id"],
            owner=record["owner_instance"],
            epoch=record["epoch"],
            leased_until=record["leased_until"],
        )
        for record in records
    ]
    return sorted(leases, key=lambda lease: lease.shard)
