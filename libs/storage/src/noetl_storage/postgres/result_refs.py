"""Stored results and what led to them: written with the batch that brought them, read back."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import asyncpg

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import KeptLink
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database, Transaction
from noetl_storage.surfaces import kept_link

_QUERIES = queries.load("result_refs")


async def checkpoint(
    transaction: Transaction,
    shard: int,
    *,
    last_event_id: int,
    last_at: datetime | None,
    results: Sequence[Mapping[str, Any]],
) -> None:
    """Note how far a shard is projected, and write the stored results that came: one statement."""
    await transaction.execute(_QUERIES["checkpoint"], shard, last_event_id, last_at, list(results))


async def replace(
    transaction: Transaction, execution_id: ExecutionId, results: Sequence[Mapping[str, Any]]
) -> None:
    """Write an execution's stored results in the place of those that are there."""
    await transaction.execute(_QUERIES["clear"], int(execution_id))
    if results:
        await transaction.execute(_QUERIES["write"], list(results))


async def list_of(database: Database, execution_id: ExecutionId) -> list[asyncpg.Record]:
    """Return an execution's stored results, in the order in which they came."""
    return await database.fetch(_QUERIES["list"], int(execution_id))


async def trace(
    database: Database, execution_id: ExecutionId, step: str, *, links_max: int
) -> list[KeptLink]:
    """Return the latest stored result of a step, the one that led to it, and so on, back."""
    found = await database.fetch(_QUERIES["trace"], int(execution_id), step, links_max)
    return [kept_link(dict(record)) for record in found]
