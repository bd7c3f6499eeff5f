"""Where workloads leave what they did: rows of one run, in the target database."""

import asyncio
import os
from collections import Counter
from typing import Any

import asyncpg

CREDENTIAL = "bench_rows"
# No key: an item that was done twice has two rows.
TABLE = "CREATE TABLE IF NOT EXISTS bench_rows (run text, item integer, body jsonb)"
# As a playbook has them.
SAVE_ITEM = "INSERT INTO bench_rows (run, item) VALUES (:run, CAST(:item AS integer))"
SAVE_BODY = (
    "INSERT INTO bench_rows (run, item, body)"
    " VALUES (:run, CAST(:item AS integer), CAST(:body AS jsonb))"
)
SAVE_MANY = (
    "INSERT INTO bench_rows (run, item, body)"
    " SELECT $1, item, body::jsonb FROM unnest($2::integer[], $3::text[]) AS r (item, body)"
)


def new_run() -> str:
    """Name a run."""
    return os.urandom(8).hex()


def prepare(dsn: str) -> None:
    """Make the table, or empty it."""
    asyncio.run(_ask(dsn, f"{TABLE}; TRUNCATE bench_rows"))


def counted(dsn: str, run: str, *, items: int) -> dict[str, int]:
    """Count what a run left: items without a row, and rows beyond an item's first."""
    rows = asyncio.run(_ask(dsn, "SELECT item FROM bench_rows WHERE run = $1", run))
    return judged([row["item"] for row in rows], items=items)


def judged(found: list[int], *, items: int) -> dict[str, int]:
    """Count what is missing of `range(items)`, and what was done again."""
    times = Counter(found)
    return {
        "rows": len(found),
        "lost": sum(1 for item in range(items) if item not in times),
        "run_again": sum(count - 1 for count in times.values()),
    }


async def _ask(dsn: str, sql: str, *values: Any) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        if values:
            return await connection.fetch(sql, *values)
        await connection.execute(sql)
        return []
    finally:
        await connection.close()
