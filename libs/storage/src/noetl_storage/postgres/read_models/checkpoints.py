"""The epochs of shards on PostgreSQL."""

from collections.abc import Mapping, Sequence

import asyncpg

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import CheckpointCommitted
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("checkpoints")


class PostgresCheckpoints:
    """Keeps the last few epochs of each shard."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_latest_epochs(
        self, shards: Sequence[int], *, shard_count: int
    ) -> list[CheckpointCommitted]:
        """Return the latest epoch of each shard that has one, by shard."""
        rows = await self._database.fetch_rows(_QUERIES["list_latest"], list(shards), shard_count)
        return [_build_epoch(record) for record in rows]

    async def commit_epochs(
        self,
        event_by_shard: Mapping[int, int],
        *,
        shard_count: int,
        set_aside: Sequence[ExecutionId],
        horizon_s: float,
        epochs_max: int,
    ) -> list[CheckpointCommitted]:
        """Commit the next epoch of each shard, projected up to an event at least; by shard."""
        rows = await self._database.fetch_rows(
            _QUERIES["commit"],
            list(event_by_shard),
            shard_count,
            list(event_by_shard.values()),
            [int(execution) for execution in set_aside],
            horizon_s,
            epochs_max,
        )
        return sorted(
            (_build_epoch(record) for record in rows), key=lambda checkpoint: checkpoint.shard
        )


def _build_epoch(record: asyncpg.Record) -> CheckpointCommitted:
    return CheckpointCommitted(
        shard=record["shard_id"],
        shard_count=record["shard_count"],
        epoch=record["epoch"],
        last_event_id=record["last_event_id"],
        through_at=record["through_at"],
        committed_at=record["committed_at"],
        set_aside=[ExecutionId(str(item)) for item in record["set_aside"]],
    )
