"""The transfer tool: every source to every target, all or nothing, whatever names and values."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.support.attempting import attempt, data_of, files_of, of_organization
from tests.support.scripted import Script, says
from tests.support.working import Bench, bench, command_of

from noetl_contracts.commands.command_work import StepResult
from noetl_contracts.requests.facts import CommandCompleted
from noetl_worker.tools.transfer import transfer_tool

HOSTILE = 'x"; drop table "t"; --'


@pytest.fixture
async def worker(tmp_path: Path, database: str) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path), postgres_connections_max=1) as found:
        await found.put_credential("db", {"dsn": database})
        yield found


@pytest.fixture
async def db(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def moved(worker: Bench, source: Any, target: Any, **fields: Any) -> Any:
    return await data_of(worker, "transfer", {"source": source, "target": target, **fields})


async def refused(worker: Bench, source: Any, target: Any, **fields: Any) -> Any:
    found = await attempt(worker, "transfer", {"source": source, "target": target, **fields})
    assert found.error is not None, found.data
    return found.error


def rows_of(data: Any) -> dict[str, Any]:
    return {"type": "data", "data": data}


def table(name: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "postgres", "auth": "db", "table": name, **fields}


async def query(worker: Bench, text: str) -> Any:
    return (await data_of(worker, "duckdb", {"query": text}))["rows"]


async def test_values_are_cast_to_the_columns(worker: Bench, db: Any) -> None:
    await db.execute(
        "create table t(i int, n numeric(10,2), b bool, ts timestamptz, d date, j jsonb, t text,"
        " u uuid, raw bytea, xs int[], ts2 text[], v varchar(5), f float8)"
    )
    row = {
        "i": "7",
        "n": 1.5,
        "b": True,
        "ts": "2026-01-02T03:04:05+00:00",
        "d": "2026-01-02",
        "j": {"a": [1, "x"]},
        "t": [1, {"k": "it's"}],
        "u": "00000000-0000-0000-0000-000000000001",
        "raw": "AAE=",
        "xs": [1, None, 3],
        "ts2": ['a"b', "c\\d", None, "{}", ""],
        "v": "abc",
        "f": 1e300,
    }
    found = await moved(worker, rows_of([row, {"i": None}]), table("t"))
    assert found == {"rows_transferred": 2, "chunks": 1, "records_fetched": 2}
    first, second = await db.fetch("select *, ts::text as shown from t order by i nulls last")
    assert first["i"] == 7
    assert str(first["n"]) == "1.50"
    assert first["b"] is True
    assert json.loads(first["j"]) == {"a": [1, "x"]}
    assert json.loads(first["t"]) == [1, {"k": "it's"}]
    assert first["raw"] == b"\x00\x01"
    assert first["xs"] == [1, None, 3]
    assert first["ts2"] == ['a"b', "c\\d", None, "{}", ""]
    assert first["f"] == 1e300
    assert second["i"] is None


async def test_http_rows_are_upserted_by_key(worker: Bench, db: Any, server: Script) -> None:
    await db.execute("create table posts(id int primary key, title text, who text)")
    await db.execute("insert into posts values (1, 'old', 'kept')")
    server.answers(
        says({"out": {"posts": [{"id": i, "title": f"t{i}", "by": {"n": "x"}} for i in (1, 2)]}})
    )
    found = await moved(
        worker,
        {"type": "http", "url": server.url, "data_path": "$.out.posts"},
        table("posts", mode="upsert", key="id", mapping={"id": "id", "title": "title"}),
    )
    assert found == {"rows_transferred": 2, "chunks": 1, "records_fetched": 2}
    got = await db.fetch("select * from posts order by id")
    assert [tuple(row) for row in got] == [(1, "t1", "kept"), (2, "t2", None)]
    server.answers(says([{"id": 3, "by": {"n": "deep"}}]))
    await moved(
        worker,
        {"tool": "http", "url": server.url},
        {"tool": "postgres", "auth": "db", "table": "posts"},
        mapping={"id": "id", "who": "by.n", "title": "by.nothing"},
    )
    assert tuple(await db.fetchrow("select * from posts where id = 3")) == (3, None, "deep")


async def test_the_last_row_of_a_key_wins(worker: Bench, db: Any) -> None:
    await db.execute("create table t(a int, b int, v text, primary key (a, b))")
    rows = [{"a": 1, "b": n % 3, "v": f"v{n}"} for n in range(9)]
    for size in (1, 4, 100):
        await moved(
            worker, rows_of(rows), table("t", mode="upsert", key=["a", "b"]), chunk_size=size
        )
        got = await db.fetch("select b, v from t order by b")
        assert [tuple(row) for row in got] == [(0, "v6"), (1, "v7"), (2, "v8")]


async def test_an_upsert_of_keys_alone_adds_them(worker: Bench, db: Any) -> None:
    await db.execute("create table t(i int primary key)")
    await moved(worker, rows_of([{"i": 1}, {"i": 2}]), table("t", mode="upsert"))
    await moved(worker, rows_of([{"i": 2}, {"i": 3}]), table("t", mode="upsert"))
    assert await db.fetchval("select array_agg(i order by i) from t") == [1, 2, 3]


async def test_replace_empties_first_and_a_failure_undoes_it(worker: Bench, db: Any) -> None:
    await db.execute("create table t(i int check (i < 100)); insert into t values (1)")
    await moved(worker, rows_of([{"i": 5}]), table("t", mode="replace"))
    assert await db.fetchval("select array_agg(i) from t") == [5]
    rows = [{"i": i} for i in range(95, 105)]
    error = await refused(worker, rows_of(rows), table("t", mode="replace"), chunk_size=2)
    assert (error.kind, error.pg_code) == ("db_constraint", "23514")
    assert await db.fetchval("select array_agg(i) from t") == [5]
    await moved(worker, rows_of([]), table("t", mode="replace"))
    assert await db.fetchval("select count(*) from t") == 0


@pytest.mark.parametrize("value", ["many", {"a": 1}, "2147483648"])
async def test_a_value_that_does_not_fit_changes_nothing(
    worker: Bench, db: Any, value: Any
) -> None:
    await db.execute("create table t(i int)")
    rows = [{"i": 1}, {"i": value}]
    for chunk_size in (1, 2):
        error = await refused(worker, rows_of(rows), table("t"), chunk_size=chunk_size)
        assert error.kind == "db_error"
        assert error.message.endswith("(column 'i', row 2)")
        assert await db.fetchval("select count(*) from t") == 0


async def test_names_are_only_names(worker: Bench, db: Any) -> None:
    name = HOSTILE.replace('"', '""')
    await db.execute(
        f'create table t(i int); create table "{name}"("{name}" text primary key, "a.b" int)'
    )
    value = "'); drop table t; --"
    for mode in ("append", "upsert", "replace"):
        rows = [{HOSTILE: f"{value}{mode}", "a.b": 1}]
        await moved(worker, rows_of(rows), table([HOSTILE], mode=mode, key=HOSTILE))
    got = await db.fetchrow('select * from "NAME"'.replace("NAME", name))
    assert tuple(got) == (f"{value}replace", 1)
    assert await db.fetchval("select count(*) from t") == 0


@pytest.mark.parametrize(
    "name",
    [
        "t; drop table t",
        'public"."t',
        "t'--",
        "t (i) select 1; --",
        "pg_catalog.pg_class_oid_index",
        "public.public.t",
        "",
        "a\0b",
        5,
        None,
        ["a", "b", "c"],
        [""],
    ],
)
async def test_a_table_that_is_not_there_is_refused(worker: Bench, db: Any, name: Any) -> None:
    await db.execute("create table t(i int)")
    error = await refused(worker, rows_of([{"i": 1}]), table(name))
    assert error.kind == "validation"
    assert await db.fetchval("select count(*) from t") == 0


async def test_a_misspelt_name_gets_a_hint(worker: Bench, db: Any) -> None:
    await db.execute("create table customers(id int, title text)")
    source = rows_of([{"id": 1, "titel": "x"}])
    assert "did you mean 'title'?" in (await refused(worker, source, table("customers"))).message
    assert "did you mean 'customers'?" in (await refused(worker, source, table("custmers"))).message
    error = await refused(
        worker,
        {"type": "postgres", "auth": "db", "query": "select 1 as ident"},
        table("customers", mapping={"id": "idnet"}),
    )
    assert "did you mean 'ident'?" in error.message
    error = await refused(
        worker, rows_of([{"id": 1}]), table("customers", mode="upsert", key="ids")
    )
    assert "did you mean 'id'?" in error.message


async def test_a_statement_takes_its_parameters_from_the_row(worker: Bench, db: Any) -> None:
    await db.execute("create table t(i int, j jsonb)")
    found = await moved(
        worker,
        rows_of([{"id": n, "doc": {"n": n}} for n in range(5)]),
        {
            "type": "postgres",
            "auth": "db",
            "query": "insert into t select :i + 1, :j where ':i' <> ''",
            "mapping": {"i": "id", "j": "doc"},
        },
        chunk_size=2,
    )
    assert found == {"rows_transferred": 5, "chunks": 3, "records_fetched": 5}
    assert await db.fetchval("select array_agg(i order by i) from t") == [1, 2, 3, 4, 5]
    target = {"type": "postgres", "auth": "db", "query": "insert into t values (:x)"}
    error = await refused(worker, rows_of([{"i": 1}]), target)
    assert error.kind == "validation"
    assert ":x" in error.message


async def test_a_database_moves_into_itself_over_one_connection(worker: Bench, db: Any) -> None:
    await db.execute("create table t as select i, 'n' || i as name from generate_series(1, 2500) i")
    await db.execute("create table copy(i int primary key, name text)")
    source = {"type": "postgres", "query": "select * from t where i > $1", "params": [500]}
    target = {"type": "postgres", "table": "public.copy"}
    found = await data_of(
        worker, "transfer", {"source": source, "target": target, "chunk_size": 300}, auth="db"
    )
    assert found == {"rows_transferred": 2000, "chunks": 7, "records_fetched": 2000}
    assert await db.fetchval("select count(*) from copy natural join t") == 2000


async def test_every_end_meets_every_other(worker: Bench, db: Any, tmp_path: Path) -> None:
    rows = [{"i": n, "t": None if n == 3 else f'it\'s {n}\n"q"'} for n in range(10)]
    await db.execute("create table t(i int, t text); create table back(i int, t text)")
    await data_of(worker, "duckdb", {"query": "create table d(i int, t varchar)"})
    await moved(worker, rows_of(rows), table("t"), chunk_size=3)
    ends: list[tuple[dict[str, Any], dict[str, Any]]] = []
    duck = {"type": "duckdb", "table": "d", "mode": "replace"}
    ends.append(({"type": "postgres", "auth": "db", "query": "select * from t order by i"}, duck))
    read = {"type": "duckdb", "query": "select * from d order by i"}
    for format_ in ("csv", "json", "ndjson", "parquet"):
        file = {"type": "file", "uri": of_organization(f"out/rows.{format_}")}
        ends.append((read, {**file, "mode": "replace"}))
        ends.append((file, table("back", mode="replace")))
        ends.append((file, duck))
    for source, target in ends:
        found = await moved(worker, source, target, chunk_size=3)
        assert found == {"rows_transferred": 10, "chunks": 4, "records_fetched": 10}, target
        assert await query(worker, "select * from d order by i") == rows, source
    got = await db.fetch("select * from back order by i")
    assert [dict(row) for row in got] == rows
    assert sorted(path.name for path in (files_of(tmp_path) / "out").iterdir()) == [
        "rows.csv",
        "rows.json",
        "rows.ndjson",
        "rows.parquet",
    ]


async def test_duckdb_moves_into_itself_and_into_another(worker: Bench) -> None:
    await data_of(
        worker,
        "duckdb",
        {"query": "create table a as select range as i from range(1000); create table b(i int)"},
    )
    source = {"type": "duckdb", "query": "select i from a"}
    for mode in ("append", "replace"):
        found = await moved(
            worker, source, {"type": "duckdb", "table": "b", "mode": mode}, chunk_size=64
        )
        assert found["rows_transferred"] == 1000
    assert await query(worker, "select count(*) as n, sum(i) as s from b") == [
        {"n": 1000, "s": 499500}
    ]
    other = {"query": "create table c(i int primary key, t varchar)", "database": "other.duckdb"}
    await data_of(worker, "duckdb", other)
    target = {"type": "duckdb", "database": "other.duckdb", "table": "c", "mode": "upsert"}
    for _ in range(2):
        await moved(worker, source, target)
    error = await refused(worker, rows_of([{"i": 5}, {"i": "x"}]), target, chunk_size=1)
    assert (error.kind, error.code) == ("db_error", "DUCKDB")
    text = {"query": "select count(*) as n from c", "database": "other.duckdb"}
    assert (await data_of(worker, "duckdb", text))["rows"] == [{"n": 1000}]


async def test_duckdb_casts_nested_values(worker: Bench) -> None:
    await data_of(
        worker,
        "duckdb",
        {
            "query": "create table t(xs int[], s struct(a int, b varchar[]), j json, b blob,"
            " d decimal(5,2), ts timestamp)"
        },
    )
    row = {
        "xs": [1, 2],
        "s": {"a": 1, "b": ["it's"]},
        "j": {"k": [1]},
        "b": "AAE=",
        "d": 1.25,
        "ts": "2026-01-02T03:04:05",
    }
    await moved(worker, rows_of(row), {"type": "duckdb", "table": "t"})
    assert await query(worker, "from t") == [row]


async def test_duckdb_names_are_only_names(worker: Bench) -> None:
    name = HOSTILE.replace('"', '""')
    await data_of(
        worker,
        "duckdb",
        {
            "query": f'create table "{name}"("{name}" varchar primary key, v int);'
            " create table t(i int)"
        },
    )
    for mode in ("append", "upsert", "replace"):
        rows = [{HOSTILE: f"'); drop table t; --{mode}", "v": 1}]
        target = {"type": "duckdb", "table": [HOSTILE], "mode": mode}
        await moved(worker, rows_of(rows), target)
    assert await query(worker, 'select v from "NAME"'.replace("NAME", name)) == [{"v": 1}]
    assert await query(worker, "select count(*) as n from t") == [{"n": 0}]
    error = await refused(worker, rows_of([{"i": 1}]), {"type": "duckdb", "table": "tt"})
    assert "did you mean 't'?" in error.message


async def test_files_grow_where_they_can(worker: Bench, tmp_path: Path) -> None:
    for format_ in ("csv", "ndjson"):
        target = {"type": "file", "uri": f"grow.{format_}"}
        await moved(worker, rows_of([{"a": 1, "b": "x,y"}]), target)
        await moved(worker, rows_of([{"b": "z", "a": 2}]), target)
        source = {"type": "file", "uri": f"grow.{format_}"}
        await moved(
            worker, source, {"type": "file", "uri": of_organization("all.json"), "mode": "replace"}
        )
        got = json.loads((files_of(tmp_path) / "all.json").read_text())
        assert [(int(row["a"]), row["b"]) for row in got] == [(1, "x,y"), (2, "z")]
    await moved(worker, rows_of([{"a": 1}]), {"type": "file", "uri": "once.parquet"})
    error = await refused(worker, rows_of([{"a": 1}]), {"type": "file", "uri": "once.parquet"})
    assert (error.kind, "replace" in error.message) == ("config", True)


async def test_a_file_that_cannot_be_finished_leaves_nothing(worker: Bench, tmp_path: Path) -> None:
    source = rows_of([{"a": 1}, {"a": 2}, {"a": "x"}])
    target = {"type": "file", "uri": of_organization("out/a.parquet")}
    error = await refused(worker, source, target, chunk_size=2)
    assert error.kind == "validation"
    assert list((files_of(tmp_path) / "out").iterdir()) == []
    (files_of(tmp_path) / "bad.csv").write_text("a,b\n1,2\n1,2,3\n")
    bad = {"type": "file", "uri": of_organization("bad.csv")}
    assert (await refused(worker, bad, target)).kind == "parse"
    assert (await refused(worker, {"type": "file", "uri": "none.csv"}, target)).kind == "not_found"
    outside = {"type": "file", "uri": "/etc/passwd", "format": "csv"}
    assert (await refused(worker, outside, target)).kind == "config"
    assert (await refused(worker, bad, {"type": "file", "uri": "../x.csv"})).kind == "config"
    assert list((files_of(tmp_path) / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"source": {"type": "ftp"}}, "source.type"),
        ({"source": "rows"}, "source.type"),
        ({"target": {"type": "http"}}, "target.type"),
        ({"target": {"type": "postgres", "table": "t", "mode": "mix"}}, "mode"),
        ({"target": {"type": "postgres"}}, "'table' or 'query'"),
        ({"target": {"type": "postgres", "table": "t", "query": "select 1"}}, "'table' or 'query'"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"chunk_size": "many"}, "chunk_size"),
        ({"mapping": ["a"]}, "mapping"),
        ({"key": 5}, "key"),
        ({"source": {"type": "data", "data": 5}}, "no rows"),
        ({"source": {"type": "file"}}, "'uri'"),
    ],
)
async def test_wrong_fields_are_named(
    worker: Bench, db: Any, fields: dict[str, Any], said: str
) -> None:
    await db.execute("create table t(i int)")
    given = {"source": rows_of([{"i": 1}]), "target": table("t"), **fields}
    found = await attempt(worker, "transfer", given, auth="db")
    assert found.error is not None
    assert found.error.kind == "validation"
    assert said in found.error.message


async def test_an_unreachable_api_is_an_error_of_http(worker: Bench, server: Script) -> None:
    server.answers(says({"no": 1}, status=503))
    source = {"type": "http", "url": server.url}
    error = await refused(worker, source, {"type": "file", "uri": "x.json"})
    assert (error.kind, error.status) == ("server_error", 503)
    server.answers(says({"rows": []}))
    error = await refused(
        worker, {**source, "data_path": "rowz"}, {"type": "file", "uri": "x.json"}
    )
    assert "did you mean 'rows'?" in error.message


async def test_a_cancelled_transfer_changes_nothing(worker: Bench, db: Any) -> None:
    await db.execute("create table t(i int); create table lock_me(i int)")
    await db.execute("begin; lock table t in access exclusive mode")
    running = asyncio.create_task(
        attempt(
            worker,
            "transfer",
            {"source": rows_of([{"i": 1}]), "target": table("t", mode="replace")},
            timeout_s=0.5,
        )
    )
    found = await running
    await db.execute("rollback")
    assert found.error is not None
    assert found.error.kind == "timeout"
    await moved(worker, rows_of([{"i": 2}]), table("t"))
    assert await db.fetchval("select array_agg(i) from t") == [2]


async def test_a_stored_result_is_moved_by_reference(worker: Bench, db: Any) -> None:
    await db.execute("create table t(i int)")
    *_, first = await worker.run(
        command_of("""
  - step: load
    tool: {kind: python, code: "return {'columns': ['i'], 'rows': [[n] for n in range(2000)]}"}
""")
    )
    assert isinstance(first, CommandCompleted)
    *_, done = await worker.run(
        command_of(
            """
  - step: s
    tool:
      kind: transfer
      source: {type: data, data: "{{ load }}"}
      target: {type: postgres, auth: db, table: t}
""",
            steps={"load": StepResult(status="ok", result=first.result)},
        )
    )
    assert isinstance(done, CommandCompleted), done
    assert await db.fetchval("select sum(i) from t") == 1999000


@pytest.mark.parametrize("kind", ["table", "view", "identity", "rule"])
async def test_a_parquet_file_gives_the_same_by_columns_and_by_rows(
    worker: Bench, db: Any, tmp_path: Path, kind: str
) -> None:
    """What a mapping forces to go by rows, and what goes by columns, end as the same rows."""
    number = "int generated always as identity" if kind == "identity" else "int"
    for name in ("by_columns", "by_rows"):
        await db.execute(
            f"create table {name}_(i {number}, n numeric(10,2), b bool, ts timestamptz, d date,"
            " j jsonb, t text, u uuid, v varchar(5), f float8, c text)"
        )
        await db.execute(f"create view {name}_seen as table {name}_")
        if kind == "rule":
            await db.execute(f"create rule r as on insert to {name}_ do instead nothing")
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    data = pa.table(
        {
            "n": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "b": [True, None],
            "ts": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "d": [date(2026, 1, 2), None],
            "j": ['{"a": [1, "x"]}', None],
            "t": ["", 'it\'s "quoted", \\. \n \\N'],
            "u": ["00000000-0000-0000-0000-000000000001", None],
            "v": ["abc", None],
            "f": [1e300, None],
            "c": pa.array(["red", None]).dictionary_encode(),
        }
    )
    pyarrow.parquet.write_table(data, files_of(tmp_path) / "same.parquet")
    source = {"type": "file", "uri": of_organization("same.parquet")}
    end = "_seen" if kind == "view" else "_"
    names = {name: name for name in data.column_names}
    first = await moved(worker, source, table("by_columns" + end))
    assert first == await moved(worker, source, table("by_rows" + end, mapping=names))
    found = [await db.fetch(f"table {name}_") for name in ("by_columns", "by_rows")]
    assert found[0] == found[1]
    assert len(found[0]) == (0 if kind == "rule" else 2)


async def test_parquet_is_read_by_pieces(worker: Bench, db: Any, tmp_path: Path) -> None:
    await db.execute("create table t(i bigint, xs int[])")
    data = pa.table({"i": list(range(5000)), "xs": [[n] for n in range(5000)]})
    pyarrow.parquet.write_table(data, files_of(tmp_path) / "big.parquet", row_group_size=700)
    found = await moved(worker, {"type": "file", "uri": of_organization("big.parquet")}, table("T"))
    assert found["rows_transferred"] == 5000
    assert await db.fetchval("select sum(xs[1]) from t") == 12497500


def counted_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the windows of rows that are read from PostgreSQL."""
    seen: list[int] = []
    real = transfer_tool.read_windows

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(transfer_tool, "read_windows", watched)
    return seen


FIELDS = "i int, b bool, n bigint, t text, u uuid, d date, ts timestamptz"
SOURCE = """
    select i, i % 2 = 0 as b, i::bigint * 10000000000 as n, v.t, md5(i::text)::uuid as u,
      date '2026-01-02' + i as d, timestamptz '2026-01-02 03:04:05.000006+02' as ts
    from generate_series(1, :rows) i
    cross join lateral (
      select (array['', 'it''s "quoted", \\. ' || chr(10) || ' \\N', 'a,b', null])[i % 4 + 1] as t
    ) v
"""


async def test_a_query_gives_the_same_table_by_columns_and_by_rows(
    worker: Bench, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_rows = counted_rows(monkeypatch)
    for name in ("by_columns", "by_rows"):
        await db.execute(f"create table {name}({FIELDS})")
    names = [part.split()[0] for part in FIELDS.split(", ")]
    source = {"type": "postgres", "auth": "db", "query": SOURCE, "params": {"rows": 3000}}
    first = await moved(worker, source, table("by_columns"))
    assert by_rows == []
    same = {name: name for name in names}
    second = await moved(worker, source, table("by_rows", mapping=same))
    assert by_rows == [1]
    assert first["rows_transferred"] == second["rows_transferred"] == 3000
    assert first["records_fetched"] == second["records_fetched"] == 3000
    found = [
        sorted(await db.fetch(f"table {name}"), key=lambda row: row["i"])
        for name in ("by_columns", "by_rows")
    ]
    assert found[0] == found[1]
    # Nothing found is nothing moved, and a table that is replaced is emptied.
    none = {**source, "params": {"rows": 0}}
    assert (await moved(worker, none, table("by_columns"), mode="replace"))["chunks"] == 0
    assert await db.fetchval("select count(*) from by_columns") == 0


async def test_a_query_gives_the_same_parquet_file_by_columns_and_by_rows(
    worker: Bench, db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_rows = counted_rows(monkeypatch)
    # Files that rows make hold moments and UUIDs of types of their own: those go by rows.
    text = SOURCE.replace("::uuid as u", " as u").replace(
        "date '2026-01-02' + i as d, timestamptz '2026-01-02", "'2026-01-02"
    )
    source = {"type": "postgres", "auth": "db", "query": text, "params": {"rows": 3000}}
    columns = {"type": "file", "uri": of_organization("columns.parquet")}
    first = await moved(worker, source, columns)
    assert (first["rows_transferred"], by_rows) == (3000, [])
    rows = {
        "type": "file",
        "uri": of_organization("rows.parquet"),
        "mapping": {n: n for n in ("i", "b", "n", "t", "u", "ts")},
    }
    await moved(worker, source, rows)
    assert by_rows == [1]
    found = [
        pyarrow.parquet.read_table(files_of(tmp_path) / f"{name}.parquet").sort_by("i")
        for name in ("columns", "rows")
    ]
    assert found[0].equals(found[1])
    empty = {**source, "params": {"rows": 0}}
    await moved(worker, empty, columns, mode="replace")
    assert pyarrow.parquet.read_table(files_of(tmp_path) / "columns.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("select 1.5::numeric as a", "a text"),
        ("select '{\"b\": [1]}'::jsonb as a", "a text"),
        ("select array[1, 2] as a", "a int[]"),
        ("select 'nan'::float8 as a", "a float8"),
        ("select now() as a", "a text"),
        ("select 1 as a", "a int generated always as identity"),
        ("show server_version", "server_version text"),
        ("select 'x'::bytea as a", "a bytea"),
    ],
)
async def test_what_would_not_be_the_same_goes_by_rows(
    worker: Bench, db: Any, monkeypatch: pytest.MonkeyPatch, text: str, kinds: str
) -> None:
    by_rows = counted_rows(monkeypatch)
    await db.execute(f"create table t({kinds})")
    source = {"type": "postgres", "auth": "db", "query": text}
    await attempt(worker, "transfer", {"source": source, "target": table("t")})
    assert by_rows == [1]


@pytest.mark.parametrize("rows", ["select 1 as a, 2 as a", "select 1 as a, 2 as a where false"])
@pytest.mark.parametrize("kind", ["postgres", "duckdb"])
async def test_a_result_with_a_column_name_twice_is_refused(
    worker: Bench, kind: str, rows: str
) -> None:
    auth = {"auth": "db"} if kind == "postgres" else {}
    found = await attempt(worker, kind, {"query": rows}, auth=auth.get("auth"))
    assert found.error is not None
    assert found.error.kind == "schema"
    text = "the result has several columns named 'a': give each a name of its own with AS"
    assert text in found.error.message
    target = {"type": "file", "uri": of_organization("a.csv")}
    error = await refused(worker, {"type": kind, "query": rows, **auth}, target)
    assert text in error.message


async def test_a_change_that_would_return_a_name_twice_is_not_made(worker: Bench, db: Any) -> None:
    await db.execute("create table t(a int)")
    query = "insert into t values (1) returning a, a"
    found = await attempt(worker, "postgres", {"query": query}, auth="db")
    assert found.error is not None
    assert await db.fetchval("select count(*) from t") == 0


async def test_duckdb_renames_what_it_nests_and_loses_nothing(worker: Bench) -> None:
    found = await query(worker, "select * from (select 1 as a, 2 as a)")
    assert found == [{"a": 1, "a_1": 2}]


@pytest.mark.parametrize("format_", ["csv", "parquet"])
async def test_a_file_with_a_column_name_twice_is_refused(
    worker: Bench, tmp_path: Path, format_: str
) -> None:
    folder = files_of(tmp_path)
    arrow_table = pa.Table.from_arrays([pa.array(["1"]), pa.array(["2"])], names=["a", "a"])
    if format_ == "csv":
        (folder / "t.csv").write_text("a,a\n1,2\n")
    else:
        pyarrow.parquet.write_table(arrow_table, folder / "t.parquet")
    source = {"type": "file", "uri": of_organization(f"t.{format_}")}
    target = {"type": "file", "uri": of_organization("b.ndjson")}
    error = await refused(worker, source, target)
    assert "several columns named 'a': rename all but one" in error.message
    found = await attempt(
        worker, "duckdb", {"query": "from t", "inputs": {"t": {"path": source["uri"]}}}
    )
    assert found.error is not None
    assert "several columns named 'a'" in found.error.message


async def test_arrays_go_through_csv_and_come_back(worker: Bench, db: Any) -> None:
    columns = "n int, xs int[], words text[], grid float8[][], moments timestamptz[]"
    await db.execute(f"create table t({columns}); create table back({columns})")
    await db.execute(
        """insert into t values
        (1, '{1,null,3}', '{"a,b","c\\"d",null,"","\\\\"}', '{{1,2.5},{3,4}}',
            '{2026-01-02 03:04:05+00}'),
        (2, '{}', '{}', '{}', null),
        (3, null, '{"[1]","NULL","{}"}', null, '{}')"""
    )
    file = {"type": "file", "uri": of_organization("arrays.csv")}
    source = {"type": "postgres", "auth": "db", "query": "select * from t order by n"}
    await moved(worker, source, {**file, "mode": "replace"})
    await moved(worker, file, table("back"))
    before = await db.fetch("select * from t order by n")
    assert await db.fetch("select * from back order by n") == before


async def test_the_own_text_of_an_array_is_read_as_before(worker: Bench, db: Any) -> None:
    await db.execute("create table t(xs int[])")
    await moved(worker, rows_of([{"xs": "{1,2}"}, {"xs": "[0:1]={7,8}"}]), table("t"))
    assert await db.fetch("select xs::text as x from t") == [("{1,2}",), ("[0:1]={7,8}",)]


async def test_a_text_of_a_column_that_does_not_fit_is_told_with_its_column(
    worker: Bench, db: Any, tmp_path: Path
) -> None:
    await db.execute("create table t(id int, d date)")
    arrow_table = pa.table({"id": [1, 2], "d": ["2026-01-02", "nope"]})
    pyarrow.parquet.write_table(arrow_table, files_of(tmp_path) / "t.parquet")
    file = {"type": "file", "uri": of_organization("t.parquet")}
    error = await refused(worker, file, table("t"))
    assert error.message.endswith("\"nope\" (column 'd')")
