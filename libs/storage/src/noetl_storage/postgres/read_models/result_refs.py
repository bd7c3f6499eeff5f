"""Stored results and the inputs that led to them; the projector writes them by `WRITE`."""

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import StoredLineageLink
from noetl_storage.ledger.surfaces import read_stored_link
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database, Transaction

_QUERIES = queries.load_queries("result_refs")
WRITE = _QUERIES["write"]


async def replace_results(
    transaction: Transaction, execution_id: ExecutionId, results: Sequence[Mapping[str, Any]]
) -> None:
    """Write an execution's stored results in the place of those that are there."""
    await transaction.execute_statement(_QUERIES["clear"], int(execution_id))
    if results:
        await transaction.execute_statement(WRITE, list(results), [int(execution_id)])


async def list_result_records(
    database: Database, execution_id: ExecutionId
) -> list[asyncpg.Record]:
    """Return an execution's stored results, in the order in which they came."""
    return await database.fetch_rows(_QUERIES["list"], int(execution_id))


async def trace_results(
    database: Database, execution_id: ExecutionId, step: str, *, links_max: int
) -> list[StoredLineageLink]:
    """Return the latest stored result of a step, the one that led to it, and so on, back."""
    rows = await database.fetch_rows(_QUERIES["trace"], int(execution_id), step, links_max)
    return [read_stored_link(dict(record)) for record in rows]
