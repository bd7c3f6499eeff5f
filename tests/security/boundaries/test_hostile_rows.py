"""Rows that say SQL, in values and in the names of columns, written with COPY."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.support.attempting import data_of
from tests.support.working import Bench, bench

HOSTILE = (
    "'; drop table victim; --",
    "' or '1'='1",
    "1); drop table victim; --",
    "$$; drop table victim; $$",
    "\\.\ndrop table victim;",
    "\\N",
    "x\ty\n\\.",
    '"; drop table victim; --',
    "\u02bc; drop table victim; --",
    "{{ 7 * 7 }}",
    "%(other)s :other $1",
)
COLUMNS = ("name", "t) from victim; drop table victim; --", 'a"; drop table victim; --', "x'y")


@pytest.fixture
async def db(database: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(database)
    columns = ", ".join('"{}" text'.format(column.replace('"', '""')) for column in COLUMNS)
    await connection.execute("create table victim (t text); insert into victim values ('kept')")
    await connection.execute(f"create table target ({columns})")
    yield connection
    await connection.close()


@pytest.fixture
async def worker(database: str) -> AsyncIterator[Bench]:
    async with bench() as found:
        await found.put_credential("db", {"dsn": database})
        yield found


async def list_values(db: "asyncpg.Connection[asyncpg.Record]", table: str) -> list[dict[str, Any]]:
    assert [tuple(row) for row in await db.fetch("select t from victim")] == [("kept",)]
    return [dict(row) for row in await db.fetch(f"select * from {table}")]  # noqa: S608 - a table of ours


async def test_rows_go_into_a_table_as_values_under_their_names(
    worker: Bench, db: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """A transfer writes with COPY."""
    rows = [dict.fromkeys(COLUMNS, value) for value in HOSTILE]
    source = {"type": "data", "data": rows}
    target = {"type": "postgres", "auth": "db", "table": "target"}
    await data_of(worker, "transfer", {"source": source, "target": target})
    assert await list_values(db, "target") == rows
