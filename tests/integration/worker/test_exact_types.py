"""Every type from every tool to every tool: value for value equal, or refused by its column."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.attempting import attempt, data_of
from tests.support.typed_values import VALUES, TypedValue
from tests.support.working import Bench, bench

from noetl_worker.tools.calls.call import Outcome

Table = dict[str, Any]
By = Callable[[Bench, TypedValue], Awaitable[Table]]
To = Callable[[Bench, Table, TypedValue], Awaitable[Outcome]]

PARQUET = {"uri": "out.parquet", "format": "parquet"}
# Of these the target has the same value in another type, or in none.
TEXTS = {"string", "json", "uuid"}


@pytest.fixture
async def worker(tmp_path: Path, database: str) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path)) as found:
        await found.put_credential("db", {"dsn": database})
        yield found


async def from_postgres(worker: Bench, value: TypedValue) -> Table:
    return await data_of(worker, "postgres", {"query": f"SELECT {value.postgres} AS v"}, auth="db")


async def from_duckdb(worker: Bench, value: TypedValue) -> Table:
    query = f"SELECT {value.duckdb} AS v"
    return await data_of(worker, "duckdb", {"query": query, "database": ":memory:"})


async def from_rows(_: Bench, value: TypedValue) -> Table:
    rows = [{"v": value.json_form}]
    return {"columns": ["v"], "types": [value.kind], "rows": rows, "row_count": 1}


async def to_duckdb(worker: Bench, table: Table, _: TypedValue) -> Outcome:
    fields = {"query": "SELECT v FROM t", "inputs": {"t": table}, "database": ":memory:"}
    return await attempt(worker, "duckdb", fields)


async def to_artifact(worker: Bench, table: Table, _: TypedValue) -> Outcome:
    return await _kept(worker, table, "parquet")


async def to_arrow(worker: Bench, table: Table, _: TypedValue) -> Outcome:
    return await _kept(worker, table, "arrow")


async def _kept(worker: Bench, table: Table, format_: str) -> Outcome:
    outcome = await attempt(worker, "artifact", {"action": "put", "data": table, "format": format_})
    if outcome.error is not None:
        return outcome
    found = await data_of(worker, "artifact", {"action": "get", "result_ref": outcome.data["ref"]})
    return Outcome(data=found["data"])


async def to_parquet(worker: Bench, table: Table, _: TypedValue) -> Outcome:
    fields = {
        "source": {"type": "data", "data": table},
        "target": {"type": "file", **PARQUET, "mode": "replace"},
    }
    moved = await attempt(worker, "transfer", fields)
    if moved.error is not None:
        return moved
    found = await data_of(worker, "artifact", {"action": "get", **PARQUET})
    return Outcome(data=found["data"])


async def to_duckdb_table(worker: Bench, table: Table, value: TypedValue) -> Outcome:
    shape = f"CREATE OR REPLACE TABLE o AS SELECT {value.duckdb} AS v LIMIT 0"
    await data_of(worker, "duckdb", {"query": shape, "database": "o.duckdb"})
    target = {"type": "duckdb", "database": "o.duckdb", "table": "o"}
    fields = {"source": {"type": "data", "data": table}, "target": target}
    moved = await attempt(worker, "transfer", fields)
    found = await attempt(worker, "duckdb", {"query": "SELECT v FROM o", "database": "o.duckdb"})
    return _effect(moved, found)


async def to_postgres_table(worker: Bench, table: Table, value: TypedValue) -> Outcome:
    shape = f"DROP TABLE IF EXISTS o; CREATE TABLE o AS SELECT {value.postgres} AS v LIMIT 0"
    await data_of(worker, "postgres", {"query": shape}, auth="db")
    target = {"type": "postgres", "auth": "db", "table": "o"}
    fields = {"source": {"type": "data", "data": table}, "target": target}
    moved = await attempt(worker, "transfer", fields)
    found = await attempt(worker, "postgres", {"query": "SELECT v FROM o"}, auth="db")
    return _effect(moved, found)


def _effect(moved: Outcome, outcome: Outcome) -> Outcome:
    if moved.error is None:
        return outcome
    assert outcome.data["rows"] == [], "what was refused has written nothing"
    return moved


SOURCES: dict[str, By] = {"postgres": from_postgres, "duckdb": from_duckdb, "rows": from_rows}
TARGETS: dict[str, To] = {
    "duckdb": to_duckdb,
    "artifact": to_artifact,
    "arrow": to_arrow,
    "parquet": to_parquet,
    "duckdb table": to_duckdb_table,
    "postgres table": to_postgres_table,
}
PORTABLE_NOT = {"endless date", "endless moment ", "endless moment with a zone", "end of the day"}
REFUSED = {
    "duckdb": {"39 digits", "wide decimal", "hugeint"},
    "artifact": {*PORTABLE_NOT, "hugeint", "interval", "seconds"},
    "arrow": {*PORTABLE_NOT, "hugeint"},
    "parquet": {*PORTABLE_NOT, "hugeint", "interval", "seconds"},
    "duckdb table": set(),
    "postgres table": set(),
}


def can_give(source: str, value: TypedValue) -> bool:
    return source == "rows" or getattr(value, source) is not None


def can_take(target: str, value: TypedValue) -> bool:
    database = target.removesuffix(" table")
    return not target.endswith(" table") or getattr(value, database) is not None


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
async def test_a_value_arrives_as_it_is_or_is_refused_by_its_column(
    worker: Bench, source: str, target: str
) -> None:
    refused = set()
    for value in VALUES:
        if not can_give(source, value) or not can_take(target, value):
            continue
        table = await SOURCES[source](worker, value)
        assert table["rows"] == [{"v": value.json_form}], value
        found = await TARGETS[target](worker, table, value)
        if found.error is not None:
            assert found.error.kind == "schema", (value, found.error)
            assert "'v'" in found.error.message, (value, found.error)
            refused.add(value.name)
            continue
        assert found.data["rows"] == table["rows"], (value, found.data)
        if target in ("artifact", "arrow", "parquet"):
            assert found.data["types"] == table["types"], value
    expected = {
        value.name
        for value in VALUES
        if can_give(source, value) and can_take(target, value) and value.name in REFUSED[target]
    }
    assert refused == expected


@pytest.mark.parametrize("source", ["postgres", "duckdb"])
async def test_a_database_names_the_types_of_its_columns(worker: Bench, source: str) -> None:
    for value in VALUES:
        if can_give(source, value) and value.json_form is not None:
            table = await SOURCES[source](worker, value)
            assert table["types"] == [value.kind], value


@pytest.mark.parametrize("kind", ["postgres", "duckdb"])
async def test_nanoseconds_are_not_rounded_by_a_target_of_microseconds(
    worker: Bench, kind: str
) -> None:
    where = {"auth": "db"} if kind == "postgres" else {}
    place = {} if kind == "postgres" else {"database": "o.duckdb"}
    await data_of(worker, kind, {"query": "CREATE TABLE o (v timestamp)", **place}, **where)
    rows = [{"v": "2026-03-29T01:30:00.123456789"}]
    table = {"columns": ["v"], "types": ["timestamp[ns]"], "rows": rows}
    target = {"type": kind, "table": "o", **where, **place}
    fields = {"source": {"type": "data", "data": table}, "target": target}
    moved = await attempt(worker, "transfer", fields)
    assert moved.error is not None
    assert (moved.error.kind, "'v'" in moved.error.message) == ("schema", True)


async def test_an_unlike_type_of_a_value_is_refused_with_its_row(worker: Bench) -> None:
    rows = [{"v": 1}, {"v": "x"}]
    table = {"columns": ["v"], "types": ["int64"], "rows": rows}
    duckdb = await to_duckdb(worker, table, VALUES[0])
    assert duckdb.error is not None
    assert duckdb.error.kind == "schema"
    assert "input 't': column 'v', row 1: 'x'" in duckdb.error.message
