"""Transfers that meet rows which are there already: expressions of `set`, merges, each once."""

from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.attempting import attempt
from tests.support.working import Bench, bench

TOTALS = {"type": "postgres", "auth": "db", "table": "totals", "key": "id"}
ADDING = {"total": "target.total + source.total", "runs": "target.runs + 1"}


@pytest.fixture
async def worker(tmp_path: Path, database: str) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path), postgres_connections_max=1) as found:
        await found.put_credential("db", {"dsn": database})
        yield found


@pytest.fixture
async def db(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database)
    await connection.execute(
        "create table totals(id int primary key, total numeric(12,2), runs int default 1);"
        "insert into totals values (1, 10.50, 1), (2, 20, 1)"
    )
    yield connection
    await connection.close()


async def transfer(worker: Bench, rows: Any, target: dict[str, Any], **fields: Any) -> Any:
    source = {"type": "data", "data": rows}
    visit = fields.pop("visit", None)
    return await attempt(
        worker, "transfer", {"source": source, "target": target, **fields}, visit=visit
    )


async def totals(db: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await db.fetch("select * from totals order by id")]


@pytest.mark.parametrize("mode", ["upsert", "merge"])
@pytest.mark.parametrize("size", [1, 1_000])
async def test_expressions_add_to_what_is_there(
    worker: Bench, db: Any, mode: str, size: int
) -> None:
    rows = [{"id": 1, "total": 0.25}, {"id": 3, "total": 7}]
    target = {**TOTALS, "mode": mode, "set": ADDING}
    found = await transfer(worker, rows, target, chunk_size=size)
    assert found.error is None, found.error
    assert found.data["rows_transferred"] == 2
    assert await totals(db) == [
        (1, Decimal("10.75"), 2),
        (2, Decimal("20.00"), 1),
        (3, Decimal("7.00"), 1),
    ]


async def test_a_second_attempt_finds_the_first_and_adds_nothing(worker: Bench, db: Any) -> None:
    target = {**TOTALS, "mode": "upsert", "set": ADDING}
    first = await transfer(worker, [{"id": 1, "total": 1}], target, visit=7_001)
    again = await transfer(worker, [{"id": 1, "total": 1}], target, visit=7_001)
    assert first.error is None, first.error
    assert again.data == first.data
    assert (await totals(db))[0] == (1, Decimal("11.50"), 2)
    other = await transfer(worker, [{"id": 1, "total": 1}], target, visit=7_002)
    assert other.error is None, other.error
    assert (await totals(db))[0] == (1, Decimal("12.50"), 3)


async def test_a_failed_attempt_leaves_neither_rows_nor_its_marker(worker: Bench, db: Any) -> None:
    target = {**TOTALS, "mode": "upsert", "set": {"total": "target.total / source.total"}}
    failed = await transfer(worker, [{"id": 1, "total": 0}], target, visit=7_003)
    assert failed.error is not None
    assert "division by zero" in failed.error.message
    assert (await totals(db))[0] == (1, Decimal("10.50"), 1)
    found = await transfer(worker, [{"id": 1, "total": 2}], target, visit=7_003)
    assert found.error is None, found.error
    assert (await totals(db))[0] == (1, Decimal("5.25"), 1)


async def test_a_merge_needs_no_unique_index(worker: Bench, db: Any) -> None:
    await db.execute(
        "create table plain(a text, b text, n int); insert into plain values ('x','y',1)"
    )
    target = {
        "type": "postgres",
        "auth": "db",
        "table": "plain",
        "mode": "merge",
        "key": ["a", "b"],
    }
    rows = [{"a": "x", "b": "y", "n": 5}, {"a": "x", "b": "z", "n": 6}]
    found = await transfer(worker, rows, target)
    assert found.error is None, found.error
    assert [tuple(row) for row in await db.fetch("select * from plain order by n")] == [
        ("x", "y", 5),
        ("x", "z", 6),
    ]
    keys = await transfer(worker, [{"a": "x", "b": "y"}, {"a": "q", "b": "q"}], target)
    assert keys.error is None, keys.error
    assert await db.fetchval("select count(*) from plain") == 3


async def test_columns_that_the_source_lacks_keep_what_they_demand(worker: Bench, db: Any) -> None:
    await db.execute(
        "create domain code as text not null check (value <> 'no');"
        "create table coded(id int primary key, c code default 'new', n int not null default 7);"
        "insert into coded values (1, 'old', 1)"
    )
    target = {"type": "postgres", "auth": "db", "table": "coded", "mode": "merge", "key": "id"}
    found = await transfer(worker, [{"id": 1}, {"id": 2}], target)
    assert found.error is None, found.error
    assert [tuple(row) for row in await db.fetch("select * from coded order by id")] == [
        (1, "old", 1),
        (2, "new", 7),
    ]
    broken = await transfer(worker, [{"id": 3, "c": "no"}], target)
    assert broken.error is not None
    assert broken.error.kind == "db_constraint", broken.error


@pytest.mark.parametrize("mode", ["upsert", "merge"])
async def test_a_key_that_comes_twice_or_not_at_all_is_refused(
    worker: Bench, db: Any, mode: str
) -> None:
    target = {**TOTALS, "mode": mode, "set": ADDING}
    for rows, said in (
        ([{"id": 1, "total": 1}, {"id": 4, "total": 1}, {"id": 1, "total": 2}], "id = 1"),
        ([{"id": None, "total": 1}], "no whole key"),
    ):
        found = await transfer(worker, rows, target, chunk_size=1)
        assert found.error is not None, found.data
        assert (found.error.kind, said in found.error.message) == ("schema", True), found.error
    assert len(await totals(db)) == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"set": {"total": "total + 1"}}, "must begin with target. or source."),
        ({"set": {"total": "target.totl + 1"}}, "did you mean 'total'"),
        ({"set": {"total": "source.runs + 1"}}, "the source has no column 'runs'"),
        ({"set": {"total": "(select max(total) from totals)"}}, "one expression"),
        ({"set": {"total": "1 + (select 1)"}}, "a subquery"),
        ({"set": {"totl": "1"}}, "did you mean 'total'"),
        ({"set": {"id": "target.id + 1"}}, "which is a key"),
        ({"set": {"total": 1}}, "map target columns to expressions"),
        ({"set": {"total": "target.total +"}}, "cannot be parsed"),
        ({"set": ADDING, "mode": "append"}, "set needs mode merge or upsert"),
        ({"mode": "merge", "key": "nix"}, "no key 'nix'"),
        ({"mode": "merge", "type": "file", "uri": "a.csv"}, "'table' of type postgres"),
    ],
)
async def test_what_is_no_merge_is_refused_by_its_field(
    worker: Bench, db: Any, fields: dict[str, Any], said: str
) -> None:
    target = {**TOTALS, "mode": "upsert", **fields}
    found = await transfer(worker, [{"id": 1, "total": 1}], target)
    assert found.error is not None, found.data
    assert (found.error.kind, said in found.error.message) == ("validation", True), found.error
    assert await totals(db) == [(1, Decimal("10.50"), 1), (2, Decimal("20.00"), 1)]
