"""Datasets in buckets and folders as inputs and outputs of DuckDB, in a real S3 server."""

import asyncio
import datetime as dt
import threading
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet
import pytest
from obstore.store import S3Store
from tests.support.attempting import site_of
from tests.support.buckets import account_of, keys_of
from tests.support.servers import S3Server
from tests.support.working import ORGANIZATION, TENANT, Bench, bench, command_of

from noetl_contracts.requests.facts import CommandCompleted
from noetl_worker.datasets import plan_scan
from noetl_worker.tools.calls.call import Call, Outcome, Timeout

PEOPLE = 'id;code;joined\n1;007;2026-01-31\n2;"a\nb";\n3;x;2026-02-01\n'


@pytest.fixture
async def worker(tmp_path: Path, s3: S3Server) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path)) as found:
        await found.put_credential("lake", account_of(s3), kind="s3")
        await found.put_credential("wrong", {**account_of(s3), "secret_key": "no"}, kind="s3")
        yield found


def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tenant" / TENANT / "org" / ORGANIZATION / "files"
    path.mkdir(parents=True, exist_ok=True)
    return path


async def run(
    worker: Bench,
    query: Any,
    *,
    key: str = "t",
    attempt: int = 1,
    timeout_s: float = 60,
    **fields: Any,
) -> Outcome:
    site = site_of()
    return await worker.tools.run(
        Call(
            site=site,
            task=key,
            kind="duckdb",
            attempt=attempt,
            visit=1,
            fields={"query": query, "database": ":memory:", **fields},
            input={},
            auth=None,
            timeout=Timeout(total=timeout_s),
        )
    )


async def answer(worker: Bench, query: Any, **fields: Any) -> Any:
    found = await run(worker, query, **fields)
    assert found.error is None, found.error
    return found.data


async def test_the_description_of_a_spark_task_reads_and_writes_in_duckdb(
    worker: Bench, s3: S3Server, bucket: S3Store
) -> None:
    obstore.put(bucket, "duck/people.csv", PEOPLE.encode())
    step = """
  - step: convert
    tool:
      kind: duckdb
      inputs:
        people:
          path: "s3://BUCKET/duck/{{ workload.name }}.csv"
          auth: lake
          delimiter: ";"
          schema: "id BIGINT, code STRING, joined DATE"
      query: SELECT * FROM people
      output:
        path: "s3://BUCKET/duck-out/"
        auth: lake
        partition_by: [joined]
"""
    step = step.replace("BUCKET", s3.bucket)
    (*_, done) = await worker.run(command_of(step, workload={"name": "people"}))
    assert isinstance(done, CommandCompleted), done
    raw = await worker.value(done.result)
    assert (raw["row_count"], raw["columns"]) == (3, ["id", "code", "joined"])
    assert raw["types"] == ["int64", "string", "date32[day]"]
    assert raw["written"]["partition_count"] == 3
    keys = keys_of(bucket, "duck-out")
    (null_file,) = [key for key in keys if "joined=__HIVE_DEFAULT_PARTITION__/" in key]
    data = bytes(obstore.get(bucket, null_file).bytes())
    assert pa.parquet.read_table(pa.BufferReader(data)).to_pylist() == [{"id": 2, "code": "a\nb"}]
    assert "duck-out/_SUCCESS" in keys

    out = {"path": f"s3://{s3.bucket}/duck-out/joined=2026*/", "auth": "lake"}
    again = await answer(
        worker,
        "SELECT a.code, a.joined FROM p a JOIN p b USING (id) WHERE a.joined >= '2026-02-01'",
        inputs={"p": out},
    )
    assert again["rows"] == [{"code": "x", "joined": "2026-02-01"}]


async def test_modes_and_repeated_attempts_hold(
    worker: Bench, s3: S3Server, bucket: S3Store
) -> None:
    sink = {"path": f"s3://{s3.bucket}/duck-modes/", "auth": "lake", "mode": "append"}
    query = ["CREATE TEMP TABLE t AS FROM range(3) r(id)", "SELECT id FROM t"]
    first = await answer(worker, query, sink=sink)
    again = await answer(worker, query, sink=sink, attempt=2)
    assert (first["written"]["is_repeated"], again["written"]["is_repeated"]) == (False, True)
    assert {key: again[key] for key in ("row_count", "columns", "types")} == {
        "row_count": 3,
        "columns": ["id"],
        "types": ["int64"],
    }
    assert len([key for key in keys_of(bucket, "duck-modes") if key.endswith(".parquet")]) == 1
    other = await answer(worker, query, sink=sink, key="other")
    read = {"d": {"path": sink["path"], "auth": "lake"}}
    counted = await answer(worker, "SELECT count(*) AS n FROM d", inputs=read)
    assert (other["written"]["version"], counted["rows"]) == (2, [{"n": 6}])
    await answer(worker, "SELECT 9::BIGINT AS id", sink={**sink, "mode": "overwrite"}, key="new")
    counted = await answer(worker, "SELECT * FROM d", inputs=read)
    assert counted["rows"] == [{"id": 9}]
    refused = await run(worker, query, sink={**sink, "mode": "error"}, key="refused")
    assert refused.error is not None
    assert "holds data already" in refused.error.message
    wider = await run(worker, "SELECT 1 AS id, 2 AS more", sink=sink, key="wider")
    assert wider.error is not None
    assert (wider.error.kind, "column 'id' is int64 there" in wider.error.message) == (
        "schema",
        True,
    )


async def test_values_of_every_type_go_out_and_come_back(worker: Bench, s3: S3Server) -> None:
    query = """
        SELECT true AS b, 1::TINYINT AS i1, 2::BIGINT AS i8, 1.5::FLOAT AS f4, 'NaN'::DOUBLE AS f8,
            1.10::DECIMAL(9, 2) AS d, 'Zoë' AS t, NULL::VARCHAR AS n, '\\x01'::BLOB AS x,
            DATE '2026-01-31' AS day, TIMESTAMP '2026-01-31 01:02:03.000004' AS at,
            TIMESTAMPTZ '2026-01-31 01:02:03+00' AS moment, [1, NULL] AS list, {'a': 1} AS struct,
            'b'::ENUM ('a', 'b') AS enum, '8f2b9f6e-0000-4000-8000-000000000000'::UUID AS id,
            170141183460469231731687303715884105::HUGEINT AS huge
    """
    for format_ in ("parquet", "arrow"):
        sink = {"path": f"s3://{s3.bucket}/duck-types-{format_}/", "auth": "lake"}
        await answer(worker, query, sink={**sink, "format": format_}, key=format_)
        plain = await answer(worker, query)
        found = await answer(worker, "SELECT * FROM d", inputs={"d": sink})
        assert found["rows"] == plain["rows"]
        read = {"d": {**sink, "columns": ["d"]}}
        types = (await answer(worker, "SELECT * FROM d", inputs=read))["types"]
        assert types == ["decimal128(9, 2)"]
    spans = {"path": f"s3://{s3.bucket}/duck-spans/", "auth": "lake"}
    unfit = await run(worker, "SELECT INTERVAL 1 MONTH AS span", sink=spans)
    assert unfit.error is not None
    assert unfit.error.kind == "schema"
    assert "cannot hold these rows as parquet" in unfit.error.message


async def test_every_format_is_read_and_only_what_is_wanted(
    worker: Bench, s3: S3Server, bucket: S3Store
) -> None:
    for format_ in ("parquet", "csv", "ndjson", "orc", "arrow"):
        sink = {
            "path": f"s3://{s3.bucket}/duck-{format_}/",
            "auth": "lake",
            "format": format_,
            "partition_by": ["day"],
        }
        query = (
            "SELECT i AS id, i || 'x' AS name, i / 4::DECIMAL(9, 2) AS price, "
            "DATE '2026-01-01' + (i % 3)::INT AS day FROM range(10) r(i)"
        )
        await answer(worker, query, sink=sink, key=format_)
        source = {"path": sink["path"], "auth": "lake", "format": format_}
        found = await answer(
            worker,
            "SELECT name FROM d WHERE day = '2026-01-02' AND id > 3 ORDER BY id",
            inputs={"d": source},
        )
        assert found["rows"] == [{"name": "4x"}, {"name": "7x"}], format_
        empty = await answer(worker, "SELECT * FROM d WHERE id > 99", inputs={"d": source})
        assert empty["columns"] == ["id", "name", "price", "day"]


async def test_rows_that_do_not_fit_are_told_once(
    worker: Bench, s3: S3Server, bucket: S3Store
) -> None:
    obstore.put(bucket, "duck-bad/p.csv", b"id,n\n1,2\nx,3\n4,6\n")
    obstore.put(bucket, "duck-bad/q.csv", b"id,n\n3,4,5\n")
    source = {
        "path": f"s3://{s3.bucket}/duck-bad/",
        "auth": "lake",
        "schema": "id BIGINT, n BIGINT",
    }
    failed = await run(worker, "SELECT sum(n) FROM p", inputs={"p": source})
    assert failed.error is not None
    assert failed.error.kind == "schema"
    assert "input 'p': line 3 of s3://" in failed.error.message
    assert "column 'id': 'x'" in failed.error.message
    found = await answer(
        worker,
        "SELECT sum(a.n) AS n FROM p a JOIN p b USING (id)",
        inputs={"p": {**source, "on_bad_row": "divert"}},
    )
    assert found["rows"] == [{"n": 8}]
    assert found["rejected"]["p"]["row_count"] == 2
    rejected = found["rejected"]["p"]["rows"]
    assert {(row["file"].rsplit("/")[-1], row["line"]) for row in rejected} == {
        ("p.csv", 3),
        ("q.csv", 2),
    }


async def test_what_is_wrong_is_told_with_its_place(
    worker: Bench, s3: S3Server, bucket: S3Store, tmp_path: Path
) -> None:
    place = f"s3://{s3.bucket}/duck-none/"
    obstore.put(bucket, "duck-broken/a.parquet", b"PAR1 no PAR1")
    obstore.put(bucket, "duck-plain/a.csv", b"a\n1\n")
    plain = f"s3://{s3.bucket}/duck-plain/a.csv"
    broken = f"s3://{s3.bucket}/duck-broken/"
    expected = [
        ({"path": place}, "config", "needs 'auth'"),
        ({"path": place, "auth": "lake"}, "not_found", f"there are no files at {place}"),
        ({"path": place, "auth": "wrong"}, "auth", "is refused to credential 'wrong'"),
        ({"path": place, "auth": "lake", "formt": "csv"}, "validation", "did you mean 'format'"),
        ({"path": broken, "auth": "lake"}, "parse", "does not read as parquet"),
        ({"path": plain, "auth": "lake", "types": {"a": "float8"}}, "schema", "'float8'"),
        ({"path": "nothing/*.csv"}, "not_found", "nothing/*.csv"),
        ({"path": "ftp://a/b.csv", "columns": ["a"]}, "validation", "scheme 'ftp'"),
        (
            {"path": plain, "auth": "lake", "expect": {"not_null": ["b"]}},
            "validation",
            "expect.not_null names 'b', which is no column",
        ),
        ({"path": plain, "auth": "lake", "expect": {"nul": ["a"]}}, "validation", "'nul'"),
    ]
    for source, kind, text in expected:
        found = await run(worker, "SELECT * FROM p", inputs={"p": source})
        assert found.error is not None, source
        assert found.error.kind == kind, found.error
        assert "input 'p'" in found.error.message
        assert text in found.error.message
    no_rows = await run(worker, "CREATE TEMP TABLE a AS SELECT 1", sink={"path": "x"})
    assert no_rows.error is not None
    assert "no query" in no_rows.error.message
    assert not (folder(tmp_path) / "x").exists()


async def test_statements_reach_neither_the_bucket_nor_the_credential(
    worker: Bench, s3: S3Server, bucket: S3Store, tmp_path: Path
) -> None:
    obstore.put(bucket, "duck-locked/p.csv", b"id\n1\n")
    source = {"p": {"path": f"s3://{s3.bucket}/duck-locked/*.csv", "auth": "lake"}}
    organization = folder(tmp_path)
    (organization / "q").mkdir()
    rows = pa.table({"id": [1]})
    pa.parquet.write_table(rows, organization / "q" / "a.parquet")
    local = {"q": {"path": "noetl://files/q/"}}
    for query in (
        f"FROM read_csv('s3://{s3.bucket}/duck-locked/p.csv')",
        f"FROM read_parquet('{organization}/q/a.parquet')",
        f"COPY (SELECT 1) TO '{organization}/q/b.parquet'",
        "SELECT * FROM duckdb_secrets()",
        "SET enable_external_access=true",
    ):
        found = await run(worker, query, inputs={**source, **local})
        told = str(found.data) if found.error is None else found.error.message
        assert found.error is not None or found.data["rows"] == [], query
        assert s3.secret_key not in told
    both = await answer(worker, "FROM p JOIN q USING (id)", inputs={**source, **local})
    assert both["rows"] == [{"id": 1}]
    assert [item.name for item in (organization / "q").iterdir()] == ["a.parquet"]


async def test_a_database_keeps_what_the_repeated_attempt_makes_again(
    worker: Bench, s3: S3Server
) -> None:
    sink = {"path": f"s3://{s3.bucket}/duck-database/", "auth": "lake"}
    query = ["CREATE TABLE seen AS SELECT 1 AS id", "SELECT id FROM seen"]
    # The first attempt's database is lost with its worker.
    await answer(worker, query, sink=sink, database=":memory:")
    again = await answer(worker, query, sink=sink, database="kept.duckdb", attempt=2)
    assert again["written"]["is_repeated"]
    kept = await answer(worker, "SELECT * FROM seen", database="kept.duckdb")
    assert kept["rows"] == [{"id": 1}]


async def test_decimals_of_a_declared_schema_are_exact(
    worker: Bench, s3: S3Server, bucket: S3Store
) -> None:
    obstore.put(bucket, "duck-exact/p.csv", b"id,price,at\n00123,1.10,2026-01-31\n")
    source = {"path": f"s3://{s3.bucket}/duck-exact/p.csv", "auth": "lake", "columns": ["price"]}
    typed = {**source, "columns": ["id", "price", "at"], "types": {"price": "decimal128(20, 4)"}}
    found = await answer(worker, "SELECT *, typeof(price) AS t FROM p", inputs={"p": typed})
    assert found["rows"] == [
        {"id": "00123", "price": 1.1, "at": "2026-01-31", "t": "DECIMAL(20,4)"}
    ]
    assert Decimal(str(found["rows"][0]["price"])) == Decimal("1.1")
    assert dt.date.fromisoformat(found["rows"][0]["at"]) == dt.date(2026, 1, 31)


async def test_a_scan_ends_with_its_task(
    worker: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa.parquet.write_table(pa.table({"id": [1]}), folder(tmp_path) / "a.parquet")
    may_end = threading.Event()

    def iterate_endlessly(*_: Any, **__: Any) -> Iterator[pa.RecordBatch]:
        while not may_end.wait(0.001):
            yield pa.record_batch({"id": [1]})

    monkeypatch.setattr(plan_scan, "iterate_source", iterate_endlessly)
    inputs = {"d": {"path": "noetl://files/a.parquet"}}
    for query in ("SELECT count(id) FROM d", "SELECT * FROM d WHERE id = 2"):
        trying = asyncio.create_task(run(worker, query, inputs=inputs, timeout_s=1))
        await asyncio.wait({trying}, timeout=20)
        has_ended = trying.done()
        if not has_ended:
            may_end.set()
        found = await trying
        assert found.error is not None
        assert (has_ended, found.error.kind) == (True, "timeout")
