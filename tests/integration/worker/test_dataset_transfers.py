"""Datasets as ends of transfers, and as outputs of postgres tasks: S3 and PostgreSQL are real."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store
from tests.support.attempting import attempt, data_of, files_of, site_of
from tests.support.buckets import account_of, keys_of
from tests.support.servers import S3Server
from tests.support.working import Bench, bench, command_of

from noetl_contracts.requests.facts import CommandCompleted
from noetl_worker.datasets.commit_log import CommitLog
from noetl_worker.tools.calls.call import Call, Timeout

COLUMNS = (
    "id bigint primary key, name text, price numeric(12,4), ok boolean, day date, at timestamptz,"
    " f float8, xs int[], j jsonb, u uuid, raw bytea, small int2"
)
VALUES = (
    "select i, case when i % 7 = 0 then null when i % 11 = 0 then '' else 'n\n\"' || i end,"
    " i / 8::numeric(12,4), i % 2 = 0, date '2026-01-01' + (i % 3)::int,"
    " timestamptz '2026-01-01 00:00:00.000001Z' + i * interval '1 s', i / 3::float8,"
    " array[i::int, null], jsonb_build_object('i', i), gen_random_uuid(), '\\x00ff'::bytea, i % 9"
    " from generate_series(1, 500) i"
)


@pytest.fixture
async def worker(tmp_path: Path, database: str, s3: S3Server) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path), postgres_connections_max=1) as found:
        await found.put_credential("db", {"dsn": database})
        await found.put_credential("lake", account_of(s3), kind="s3")
        yield found


def repeated(kind: str, *, attempt: int, visit: int = 1, **fields: Any) -> Call:
    """A call that is of one task, whatever its attempt."""
    site = site_of()
    return Call(
        site=site,
        task="t",
        kind=kind,
        attempt=attempt,
        visit=visit,
        fields=fields,
        input={},
        auth=fields.pop("auth", None),
        timeout=Timeout(total=60),
    )


async def moved(worker: Bench, source: Any, target: Any, **fields: Any) -> Any:
    return await data_of(worker, "transfer", {"source": source, "target": target, **fields})


async def refused(worker: Bench, source: Any, target: Any, **fields: Any) -> Any:
    found = await attempt(worker, "transfer", {"source": source, "target": target, **fields})
    assert found.error is not None, found.data
    return found.error


def table(name: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "postgres", "auth": "db", "table": name, **fields}


async def test_a_table_goes_into_a_dataset_and_comes_back_equal(
    worker: Bench, s3: S3Server, db: Any, bucket: S3Store
) -> None:
    await db.execute(f"create table t({COLUMNS}); insert into t {VALUES}")
    await db.execute("create table back (like t including all)")
    lake = {"path": f"s3://{s3.bucket}/moved/", "auth": "lake"}
    source = {
        "type": "postgres",
        "auth": "db",
        "query": "select * from t where id <= $1",
        "params": [400],
    }
    out = await moved(worker, source, {**lake, "partition_by": ["day"]})
    assert (out["rows_transferred"], out["written"]["partition_count"]) == (400, 3)
    assert any("day=2026-01-02/part-" in key for key in keys_of(bucket, "moved"))
    names = {"query": 'SELECT typeof(price) p, typeof("at") a, typeof(xs) x FROM d LIMIT 1'}
    typed = await data_of(worker, "duckdb", {**names, "inputs": {"d": lake}})
    assert typed["rows"] == [
        {"p": "DECIMAL(12,4)", "a": "TIMESTAMP WITH TIME ZONE", "x": "INTEGER[]"}
    ]
    back = await moved(worker, lake, table("back"))
    assert back["rows_transferred"] == 400
    assert await db.fetchval("select count(*) from (table back except select * from t) d") == 0
    assert await db.fetchval("select count(*) from back") == 400


@pytest.mark.parametrize("mode", ["append", "replace", "upsert"])
async def test_a_dataset_takes_effect_in_a_table_once(
    worker: Bench, s3: S3Server, db: Any, mode: str
) -> None:
    await db.execute("create table once(id bigint primary key, n bigint)")
    lake = {"path": f"s3://{s3.bucket}/once-{mode}/", "auth": "lake"}
    await moved(worker, {"type": "data", "data": [{"id": 1, "n": 2}, {"id": 2, "n": 3}]}, lake)
    for number in (1, 2):
        target = table("once", mode=mode, key="id")
        call = repeated("transfer", attempt=number, source=lake, target=target)
        found = await worker.tools.run(call)
        assert found.error is None, found.error
        assert found.data["rows_transferred"] == 2
    assert await db.fetchval("select count(*) from once") == 2


async def test_a_dataset_is_filled_once(worker: Bench, s3: S3Server, bucket: S3Store) -> None:
    lake = {"path": f"s3://{s3.bucket}/filled/", "auth": "lake", "mode": "append"}
    rows = {"type": "data", "data": [{"id": 1}, {"id": 2}]}
    found = [
        await worker.tools.run(repeated("transfer", attempt=number, source=rows, target=lake))
        for number in (1, 2)
    ]
    assert [item.data["written"]["is_repeated"] for item in found] == [False, True]
    assert [item.data["rows_transferred"] for item in found] == [2, 2]
    assert len([key for key in keys_of(bucket, "filled") if key.endswith(".parquet")]) == 1


async def test_an_upsert_from_a_dataset_keeps_the_last_of_equal_keys(
    worker: Bench, s3: S3Server, db: Any, bucket: S3Store
) -> None:
    await db.execute("create table u(id bigint primary key, n bigint, total bigint default 0)")
    await db.execute("insert into u values (1, 10, 100), (9, 9, 9)")
    obstore.put(bucket, "upsert/a.csv", b"id,n\n1,1\n2,2\n1,3\n")
    source = {"path": f"s3://{s3.bucket}/upsert/*.csv", "auth": "lake"}
    out = await moved(worker, source, table("u", mode="upsert", key="id"))
    assert out["rows_transferred"] == 2
    rows = await db.fetch("select id, n from u order by id")
    assert [tuple(row) for row in rows] == [(1, 3), (2, 2), (9, 9)]
    obstore.put(bucket, "upsert/a.csv", b"id,n\n1,5\n3,4\n")
    merge = {"mode": "upsert", "key": "id", "set": {"total": "target.total + source.n"}}
    await moved(worker, source, table("u", **merge, mapping={"id": "id", "n": "n"}))
    rows = await db.fetch("select id, n, total from u where id in (1, 3) order by id")
    assert [tuple(row) for row in rows] == [(1, 5, 105), (3, 4, 0)]


async def test_every_source_fills_a_dataset(
    worker: Bench, s3: S3Server, bucket: S3Store, tmp_path: Path
) -> None:
    obstore.put(bucket, "many-in/a.csv", b"k;v\n1;x\n2;\n")
    (files_of(tmp_path) / "a.ndjson").write_text('{"k": 1, "v": "x"}\n{"k": 2, "v": null}\n')
    sources: dict[str, dict[str, Any]] = {
        "dataset": {"path": f"s3://{s3.bucket}/many-in/", "auth": "lake", "delimiter": ";"},
        "duckdb": {"type": "duckdb", "query": "FROM (VALUES (1::BIGINT, 'x'), (2, NULL)) t(k, v)"},
        "postgres": {
            "type": "postgres",
            "auth": "db",
            "query": "select * from (values (1::bigint, 'x'), (2, null)) t(k, v)",
        },
        "data": {"type": "data", "data": [{"k": 1, "v": "x"}, {"k": 2, "v": None}]},
        "file": {"type": "file", "uri": "noetl://files/a.ndjson"},
    }
    for name, source in sources.items():
        target = {"path": f"s3://{s3.bucket}/many-{name}/", "auth": "lake"}
        out = await moved(worker, source, target, mapping={"key": "k", "value": "v"})
        assert (out["rows_transferred"], out["records_fetched"]) == (2, 2), name
        found = await data_of(
            worker, "duckdb", {"query": "FROM d ORDER BY key", "inputs": {"d": target}}
        )
        assert found["rows"] == [{"key": 1, "value": "x"}, {"key": 2, "value": None}], name
        assert found["types"] == ["int64", "string"], name


async def test_a_dataset_goes_into_a_database_and_a_file(
    worker: Bench, s3: S3Server, bucket: S3Store
) -> None:
    obstore.put(bucket, "into/a.csv", b"k,price\n1,1.10\nx,2.20\n")
    source = {
        "path": f"s3://{s3.bucket}/into/",
        "auth": "lake",
        "schema": "k BIGINT, price DECIMAL(9,2)",
        "on_bad_row": "divert",
    }
    await data_of(worker, "duckdb", {"query": "CREATE TABLE t(k BIGINT, price DECIMAL(9,2))"})
    out = await moved(worker, source, {"type": "duckdb", "table": "t"})
    assert out["rejected"]["source"]["row_count"] == 1
    found = await data_of(worker, "duckdb", {"query": "SELECT k, price::text AS p FROM t"})
    assert found["rows"] == [{"k": 1, "p": "1.10"}]
    await moved(worker, source, {"type": "file", "uri": "out.parquet", "mode": "replace"})
    read = {"query": "SELECT typeof(price) t FROM f", "inputs": {"f": {"path": "out.parquet"}}}
    assert (await data_of(worker, "duckdb", read))["rows"] == [{"t": "DECIMAL(9,2)"}]


async def test_what_cannot_be_moved_is_refused_and_nothing_is_there(
    worker: Bench, s3: S3Server, db: Any, bucket: S3Store
) -> None:
    await db.execute("create table r(id bigint)")
    obstore.put(bucket, "refused/a.csv", b"id\n1\nx\n")
    lake = {"path": f"s3://{s3.bucket}/refused/", "auth": "lake"}
    none = {"path": f"s3://{s3.bucket}/refused-out/", "auth": "lake"}
    rows = {"type": "data", "data": [{"id": 1}]}
    bad = {**lake, "schema": "id BIGINT"}
    expected = [
        (rows, {**none, "mode": "replace"}, "validation", "use error, append"),
        (rows, {**none, "mode": "upsert", "key": "id"}, "validation", "is for iceberg and delta"),
        (rows, {**none, "expect": {"nul": ["id"]}}, "validation", "unknown key 'nul'"),
        ({**lake, "expect": {"not_null": ["no"]}}, table("r"), "validation", "is no column"),
        (rows, {"path": none["path"]}, "config", "needs 'auth'"),
        ({"type": "data", "data": []}, none, "validation", "has no rows"),
        (bad, table("r"), "schema", "line 3 of s3://"),
        (bad, none, "schema", "line 3 of s3://"),
        ({**lake, "columns": ["no"]}, table("r"), "schema", "has no column 'no'"),
        (lake, table("r", mapping={"id": "idd"}), "validation", "'id'"),
        ({"type": "postgres", "auth": "db", "query": "select 1/0 as a"}, none, "db_error", "zero"),
        (
            {"type": "postgres", "auth": "db", "query": "select 'infinity'::date as a"},
            none,
            "schema",
            "column 'a' holds infinity",
        ),
    ]
    for source, target, kind, text in expected:
        error = await refused(worker, source, target)
        assert (error.kind, text in error.message) == (kind, True), error
    assert await db.fetchval("select count(*) from r") == 0
    left = [key for key in keys_of(bucket, "refused-out") if "_noetl" in key]
    assert left == []


async def test_a_later_chunk_changes_no_value(worker: Bench, s3: S3Server) -> None:
    lake = {"path": f"s3://{s3.bucket}/chunks/", "auth": "lake", "mode": "overwrite"}
    for target in (lake, {"type": "file", "uri": "chunks.parquet", "mode": "replace"}):
        for first, later in ((True, 3), (1, "007"), (1, True), ("x", 5), ([True], [3])):
            rows = {"type": "data", "data": [{"a": first}, {"a": later}]}
            error = await refused(worker, rows, target, chunk_size=1)
            assert (error.kind, "types of the first" in error.message) == ("validation", True)
        for first, later in ((1.5, 2), (2, 3.0), ("x", None), ([1], [])):
            rows = {"type": "data", "data": [{"a": first}, {"a": later}]}
            out = await moved(worker, rows, target, chunk_size=1)
            assert out["rows_transferred"] == 2


async def test_a_query_of_postgres_writes_a_dataset(
    worker: Bench, s3: S3Server, db: Any, bucket: S3Store
) -> None:
    await db.execute(f"create table t({COLUMNS}); insert into t {VALUES}")
    step = """
  - step: export
    tool:
      kind: postgres
      auth: db
      query: SELECT id, price, day FROM t WHERE id > :low
      params: {low: 100}
      output: {path: "s3://BUCKET/export/", auth: lake, partition_by: [day], mode: append}
"""
    (*_, done) = await worker.run(command_of(step.replace("BUCKET", s3.bucket)))
    assert isinstance(done, CommandCompleted), done
    raw = await worker.value(done.result)
    assert (raw["row_count"], raw["columns"]) == (400, ["id", "price", "day"])
    assert raw["types"] == ["int64", "decimal128(12, 4)", "date32[day]"]
    sink = {"path": f"s3://{s3.bucket}/export-2/", "auth": "lake"}
    found = [
        await worker.tools.run(
            repeated("postgres", attempt=number, auth="db", query="select 1 as n", sink=sink)
        )
        for number in (1, 2)
    ]
    assert [item.data["written"]["is_repeated"] for item in found] == [False, True]
    many = await worker.tools.run(
        repeated("postgres", attempt=1, auth="db", query="select 1; select 2", sink=sink)
    )
    assert many.error is not None
    assert "there are 2 statements" in many.error.message
    anew = {**sink, "mode": "overwrite"}
    slow = {"query": "select pg_sleep(20)::text as n", "statement_timeout": 0.2}
    late = await worker.tools.run(
        repeated("postgres", attempt=1, auth="db", visit=2, sink=anew, **slow)
    )
    assert late.error is not None
    assert late.error.pg_code == "57014", late.error


async def test_a_commit_that_is_lost_leaves_no_rows(
    worker: Bench, s3: S3Server, bucket: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = {"path": f"s3://{s3.bucket}/lost/", "auth": "lake", "mode": "append"}
    rows = {"type": "data", "data": [{"id": 1}]}

    def die(*_: Any) -> Any:
        raise RuntimeError("the worker is gone")

    with monkeypatch.context() as patched:
        patched.setattr(CommitLog, "append_commit", die)
        with pytest.raises(RuntimeError):
            await worker.tools.run(repeated("transfer", attempt=1, source=rows, target=lake))
    assert [key for key in keys_of(bucket, "lost") if key.endswith(".parquet")]
    again = await worker.tools.run(repeated("transfer", attempt=2, source=rows, target=lake))
    assert again.error is None
    assert not again.data["written"]["is_repeated"]
    read = {"d": {"path": lake["path"], "auth": "lake"}}
    found = await data_of(worker, "duckdb", {"query": "SELECT count(*) n FROM d", "inputs": read})
    assert found["rows"] == [{"n": 1}]
    assert len([key for key in keys_of(bucket, "lost") if key.endswith(".parquet")]) == 1


@pytest.mark.parametrize("kind", ["postgres", "transfer"])
async def test_a_query_ends_with_the_task_that_waits_for_it(
    worker: Bench, s3: S3Server, db: Any, kind: str
) -> None:
    lake = {"path": f"s3://{s3.bucket}/waiting/", "auth": "lake"}
    query = "select pg_advisory_lock_shared(7)::text as held"
    source = {"type": "postgres", "auth": "db", "query": query}
    fields = {
        "postgres": {"query": query, "sink": lake},
        "transfer": {"source": source, "target": lake},
    }
    await db.execute("select pg_advisory_lock(7)")
    trying = asyncio.create_task(attempt(worker, kind, fields[kind], auth="db", timeout_s=1))
    await asyncio.wait({trying}, timeout=20)
    has_ended = trying.done()
    await db.execute("select pg_advisory_unlock(7)")
    found = await trying
    assert found.error is not None
    assert (has_ended, found.error.kind) == (True, "timeout")
