"""Stored results and what led to them; `WRITE` also stands in what applies a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import KeptLink
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database, Transaction
from noetl_storage.surfaces import kept_link

_QUERIES = queries.load("result_refs")
WRITE = _QUERIES["write"]


async def replace(
    transaction: Transaction, execution_id: ExecutionId, results: Sequence[Mapping[str, Any]]
) -> None:
    """Write an execution's stored results in the place of those that are there."""
    await transaction.execute(_QUERIES["clear"], int(execution_id))
    if results:
        await transaction.execute(WRITE, list(results), [int(execution_id)])


async def list_of(database: Database, execution_id: ExecutionId) -> list[asyncpg.Record]:
    """Return an execution's stored results, in the order in which they came."""
    return await database.fetch(_QUERIES["list"], int(execution_id))


async def trace(
    database: Database, execution_id: ExecutionId, step: str, *, links_max: int
) -> list[KeptLink]:
    """Return the latest stored result of a step, the one that led to it, and so on, back."""
    found = await database.fetch(_QUERIES["trace"], int(execution_id), step, links_max)
    return [kept_link(dict(record)) for record in found]
