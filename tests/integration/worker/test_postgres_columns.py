"""Arrow into PostgreSQL and out of it, by COPY: every value, absent ones too, and no Python row."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pytest

from noetl_worker.domain.failures import ToolFailure
from noetl_worker.tools.postgres import copy_columns
from noetl_worker.tools.postgres.copy_columns import (
    BLOCK_BYTES,
    can_copy_schema,
    read_columns,
    write_columns,
)
from noetl_worker.tools.postgres.postgres_session import PostgresSession

MEBIBYTE = 1024 * 1024
MOMENT = datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
CREATE = """
create table wide (
    flag bool, small int2, n int4, large int8, half float8, money numeric(10, 2), words text,
    day date, clock time, at timestamp, moment timestamptz, about jsonb
)
"""
TABLE = pa.table(
    {
        "flag": pa.array([True, None, False]),
        "small": pa.array([-1, None, 32767], pa.int16()),
        "n": pa.array([1, None, 2**31 - 1], pa.int32()),
        "large": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
        "half": pa.array([0.1, None, float("inf")], pa.float64()),
        "money": pa.array([Decimal("1.50"), None, Decimal("-99999999.99")], pa.decimal128(10, 2)),
        "words": pa.array(["", None, 'a "quoted", \\. line\nand ä\U0001f600 \\N'], pa.string()),
        "day": pa.array([date(2026, 2, 3), None, date(1, 1, 1)]),
        "clock": pa.array([time(4, 5, 6, 789012), None, time(0)], pa.time64("us")),
        "at": pa.array([MOMENT.replace(tzinfo=None), None, None], pa.timestamp("us")),
        "moment": pa.array([MOMENT, None, MOMENT], pa.timestamp("us", "UTC")),
        "about": pa.array(['{"a": [1, "x"]}', None, "{}"], pa.string()),
    }
)


@pytest.fixture
async def session(database: str) -> AsyncIterator[PostgresSession]:
    connection = await asyncpg.connect(database)
    # What a session was told must not change what is read.
    await connection.execute("set timezone = 'Asia/Tokyo'; set datestyle = 'German'")
    try:
        yield PostgresSession(connection)
    finally:
        await connection.close()


async def batches(table: pa.Table, size: int = 2) -> AsyncGenerator[pa.RecordBatch, None]:
    for batch in table.to_batches(max_chunksize=size):
        yield batch


async def everything(session: PostgresSession, query: str, *values: Any, **types: Any) -> pa.Table:
    async with session.connection.transaction():
        columns = read_columns(session, query, values, types=types)
        async with aclosing(columns):
            return pa.Table.from_batches([batch async for batch in columns])


async def write(session: PostgresSession, parts: list[str], table: pa.Table) -> int:
    async with session.connection.transaction():
        return await write_columns(session, parts, batches(table))


async def test_a_table_goes_in_and_comes_out_the_same(session: PostgresSession) -> None:
    await session.connection.execute(CREATE)
    assert await write(session, ["public", "wide"], TABLE) == 3
    found = await everything(session, "select * from wide", money=pa.decimal128(10, 2))
    assert found.schema.equals(TABLE.schema)
    assert found.to_pylist() == TABLE.to_pylist()
    stored = await session.connection.fetchrow("select * from wide where flag")
    assert stored["words"] == ""
    assert stored["moment"] == MOMENT
    assert stored["money"] == Decimal("1.50")


async def test_a_numeric_whose_digits_nobody_named_comes_exactly(session: PostgresSession) -> None:
    found = await everything(session, "select 12345678901234567890.10::numeric as n")
    assert found.to_pydict() == {"n": ["12345678901234567890.10"]}


async def test_values_are_bound_and_never_text(session: PostgresSession) -> None:
    hostile = "x'); drop table wide; --"
    found = await everything(session, "select $1::text as t, $2::int as n", hostile, 7)
    assert found.to_pylist() == [{"t": hostile, "n": 7}]


@pytest.mark.parametrize("absent", [0, 1, 3])
async def test_a_single_column_keeps_its_absent_values(
    session: PostgresSession, absent: int
) -> None:
    query = "select null::int as i from generate_series(1, $1)"
    found = await everything(session, query, absent)
    assert found.to_pydict() == {"i": [None] * absent}
    assert found.schema.field("i").type == pa.int32()


async def test_names_are_only_names(session: PostgresSession) -> None:
    await session.connection.execute('create table "odd "" name" ("a ""b""; --" int, "Ä" text)')
    table = pa.table({'a "b"; --': pa.array([1], pa.int32()), "Ä": ["x"]})
    assert await write(session, ['odd " name'], table) == 1
    found = await everything(session, 'select * from "odd "" name"')
    assert found.to_pylist() == [{'a "b"; --': 1, "Ä": "x"}]


async def test_dictionaries_are_what_they_say(session: PostgresSession) -> None:
    await session.connection.execute("create table colors (color text)")
    table = pa.table({"color": pa.array(["red", None, "red"]).dictionary_encode()})
    assert await write(session, ["colors"], table) == 3
    found = await everything(session, "select * from colors")
    assert found.to_pydict() == {"color": ["red", None, "red"]}


async def test_nothing_is_written_when_a_later_batch_does_not_fit(session: PostgresSession) -> None:
    await session.connection.execute("create table few (n int check (n < 3))")
    with pytest.raises(asyncpg.CheckViolationError):
        await write(session, ["few"], pa.table({"n": [1, 2, 3, 4]}))
    assert await session.connection.fetchval("select count(*) from few") == 0


async def test_no_batches_are_no_rows(session: PostgresSession) -> None:
    await session.connection.execute("create table none (n int)")
    assert await write(session, ["none"], pa.table({"n": pa.array([], pa.int32())}).slice(0)) == 0


@pytest.mark.parametrize(
    "query",
    [
        "select 'infinity'::timestamptz as t",
        "select '0044-03-15 BC'::date as d",
        "select repeat('x', 8388608) as s from generate_series(1, 3)",
    ],
)
async def test_what_arrow_cannot_hold_is_said_with_a_way_out(
    session: PostgresSession, query: str
) -> None:
    with pytest.raises(ToolFailure, match="cast the column to text"):
        await everything(session, query)
    assert await session.connection.fetchval("select 1") == 1


async def test_two_columns_of_one_name_are_refused(session: PostgresSession) -> None:
    with pytest.raises(ToolFailure, match="several columns named 'n'"):
        await everything(session, "select 1 as n, 2 as n")


async def test_a_wrong_query_is_the_databases_error(session: PostgresSession) -> None:
    with pytest.raises(asyncpg.UndefinedTableError):
        await everything(session, "select * from nowhere")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await everything(session, "select 1 / (2 - n) from generate_series(1, 3) as n")


@pytest.mark.parametrize(
    ("column", "type_", "category", "is_fit"),
    [
        (pa.array(["x"]), "jsonb", "U", True),
        (pa.array([1]), "text", "S", True),
        (pa.array([1.0]), "text", "S", False),
        (pa.array([1.0]), "numeric(10,2)", "N", True),
        (pa.array([date(2026, 1, 1)]), "date", "D", True),
        (pa.array([date(2026, 1, 1)]), "text", "S", False),
        (pa.array(["AAE="]), "bytea", "U", False),
        (pa.array([b"x"]), "bytea", "U", False),
        (pa.array([[1]]), "integer[]", "A", False),
        (pa.array([{"a": 1}]), "jsonb", "U", False),
    ],
)
def test_columns_go_by_copy_only_where_their_text_means_the_same(
    column: pa.Array, type_: str, category: str, *, is_fit: bool
) -> None:
    assert can_copy_schema(pa.table({"c": column}).schema, {"c": (type_, category)}) is is_fit
    assert not can_copy_schema(pa.table({"c": column}).schema, {"d": (type_, category)})


async def test_a_large_query_is_read_in_little_memory(session: PostgresSession) -> None:
    """A hundred megabytes of rows: what Arrow holds at any moment is some blocks."""
    query = "select n, repeat('x', 1000) as s from generate_series(1, 50000) as n"
    total = rows = held = 0
    before = pa.total_allocated_bytes()
    async with session.connection.transaction():
        columns = read_columns(session, query)
        async with aclosing(columns):
            async for batch in columns:
                rows += batch.num_rows
                total += batch.nbytes
                held = max(held, pa.total_allocated_bytes() - before)
    assert rows == 50_000
    assert total > 48 * MEBIBYTE
    assert held < 8 * BLOCK_BYTES


def test_no_row_of_it_passes_through_python() -> None:
    text = Path(copy_columns.__file__).read_text()
    assert not {"to_pylist", "to_pydict", "fetchrow", ".fetch("} & set(text.split("("))
