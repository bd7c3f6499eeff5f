"""Rows of datasets held to what is expected of them by every tool but Spark."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet
import pytest
from obstore.store import S3Store
from tests.support.attempting import attempt, data_of
from tests.support.buckets import account_of, keys_of
from tests.support.servers import S3Server
from tests.support.working import Bench, bench

ORDERS = b"id,person,amount,at\n1,1,5,2026-01-01\n2,3,-1,2026-01-02\n2,,,\n"
DIVERTING = {"range": {"amount": {"min": 0}}, "on_fail": "divert"}
MEMORY = {"database": ":memory:"}


@pytest.fixture
async def worker(tmp_path: Path, database: str, s3: S3Server) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path), postgres_connections_max=1) as opened:
        await opened.put_credential("db", {"dsn": database})
        await opened.put_credential("lake", account_of(s3), kind="s3")
        yield opened


@pytest.fixture
def orders(s3: S3Server, bucket: S3Store) -> dict[str, Any]:
    obstore.put(bucket, "checked/orders.csv", ORDERS)
    return {"path": f"s3://{s3.bucket}/checked/orders.csv", "auth": "lake", "schema": "infer"}


async def fail(worker: Bench, kind: str, fields: dict[str, Any], *, auth: Any = None) -> Any:
    outcome = await attempt(worker, kind, fields, auth=auth)
    assert outcome.error is not None, outcome.data
    return outcome.error


def get_met(data: dict[str, Any]) -> dict[str, bool]:
    return {f"{check['dataset']}: {check['check']}": check["is_met"] for check in data["checks"]}


async def test_inputs_of_duckdb_are_checked_before_its_statements_run(
    worker: Bench, orders: dict[str, Any]
) -> None:
    broken = {**orders, "expect": {"not_null": ["id"], "unique": ["id"]}}
    statements = ["CREATE TABLE made AS SELECT 1 AS a", "SELECT * FROM o"]
    error = await fail(worker, "duckdb", {"query": statements, "inputs": {"o": broken}})
    assert error.kind == "assertion"
    assert "input 'o': unique id does not hold in 1 of 3 rows, as {'id': 2}" in error.message
    tables = await data_of(worker, "duckdb", {"query": "SELECT * FROM duckdb_tables()"})
    assert tables["rows"] == []


@pytest.mark.parametrize(
    "rows", [{"rows": [{"id": 1}, {"id": None}]}, {"rows": [[1], [None]], "columns": ["id"]}]
)
async def test_rows_of_an_input_are_checked(worker: Bench, rows: dict[str, Any]) -> None:
    inputs = {"o": {**rows, "expect": {"not_null": "id"}}}
    error = await fail(worker, "duckdb", {"query": "SELECT * FROM o", "inputs": inputs, **MEMORY})
    assert error.message == ("input 'o': not_null id does not hold in 1 of 2 rows, as {'id': None}")


@pytest.mark.parametrize("end", ["source", "target"])
async def test_an_end_of_a_transfer_that_cannot_be_checked_is_refused(
    worker: Bench, end: str
) -> None:
    ends: dict[str, dict[str, Any]] = {
        "source": {"type": "data", "data": [{"id": 1}]},
        "target": {"type": "file", "uri": "out.ndjson"},
    }
    ends[end]["expect"] = {"not_null": "id"}
    error = await fail(worker, "transfer", ends)
    assert error.kind == "validation"
    assert f"{end}.expect holds rows of a dataset to it" in error.message


async def test_inputs_of_duckdb_are_diverted_for_every_look_at_them(
    worker: Bench, orders: dict[str, Any]
) -> None:
    people = {"query": "SELECT 1 AS key", "auth": "db"}
    keyed = {"foreign_key": {"column": "person", "of": "p", "key": "key"}, "on_fail": "warn"}
    data = await data_of(
        worker,
        "duckdb",
        {
            "query": "SELECT a.id FROM o a JOIN o b USING (id) WHERE a.amount IS NOT NULL",
            "inputs": {
                "o": {**orders, "expect": DIVERTING},
                "w": {**orders, "expect": keyed},
                "p": {**people, "expect": {"row_count": {"max": 1}}},
            },
            **MEMORY,
        },
    )
    assert data["rows"] == [{"id": 1}]
    assert get_met(data) == {
        "input 'o': range amount": False,
        "input 'w': foreign_key person": False,
        "input 'p': row_count": True,
    }
    assert [row["amount"] for row in data["diverted"]["o"]] == [-1]


async def test_rows_too_long_to_be_shown_are_left_out_all_the_same(worker: Bench) -> None:
    rows = [{"id": 1, "text": "a"}, {"id": None, "text": "b" * 2_000_000}]
    expect = {"not_null": "id", "on_fail": "divert"}
    described = {"rows": rows, "columns": ["id", "text"], "expect": expect}
    fields = {"query": "SELECT id, length(text) AS n FROM o", "inputs": {"o": described}, **MEMORY}
    data = await data_of(worker, "duckdb", fields)
    assert data["rows"] == [{"id": 1, "n": 1}]
    assert data["checks"][0]["failed_rows"] == 1
    assert "diverted" not in data


async def test_an_output_of_duckdb_that_breaks_a_check_is_not_written(
    worker: Bench, s3: S3Server, bucket: S3Store, orders: dict[str, Any]
) -> None:
    sink = {"path": f"s3://{s3.bucket}/checked-out/", "auth": "lake"}
    fields = {"query": "SELECT * FROM o", "inputs": {"o": orders}, **MEMORY}
    kin = {"foreign_key": {"column": "person", "of": "o", "key": "id"}}
    error = await fail(worker, "duckdb", {**fields, "sink": {**sink, "expect": kin}})
    assert (error.kind, error.message) == (
        "assertion",
        "output: foreign_key person does not hold in 1 of 3 rows, as {'person': 3}",
    )
    assert keys_of(bucket, "checked-out") == []
    diverted = await data_of(worker, "duckdb", {**fields, "sink": {**sink, "expect": DIVERTING}})
    assert diverted["row_count"] == 2
    assert [row["id"] for row in diverted["diverted"]["output"]] == [2]
    (file,) = [key for key in keys_of(bucket, "checked-out") if key.endswith(".parquet")]
    written = pa.parquet.read_table(pa.py_buffer(bytes(obstore.get(bucket, file).bytes())))
    assert written.column("amount").to_pylist() == [5, None]


async def test_a_transfer_checks_its_source_before_its_target_is_changed(
    worker: Bench, db: Any, orders: dict[str, Any]
) -> None:
    await db.execute("create table t(id bigint, person bigint, amount bigint, at date)")
    target = {"type": "postgres", "auth": "db", "table": "t"}
    for expect in ({"unique": "id"}, {"predicate": "amount > 0"}, {"row_count": {"max": 2}}):
        source = {**orders, "expect": expect}
        error = await fail(worker, "transfer", {"source": source, "target": target})
        assert error.kind == "assertion", error
        assert error.message.startswith("source: "), error
        assert await db.fetchval("select count(*) from t") == 0
    source = {**orders, "expect": DIVERTING}
    data = await data_of(worker, "transfer", {"source": source, "target": target})
    assert (data["rows_transferred"], data["records_fetched"]) == (2, 3)
    assert [row["amount"] for row in data["diverted"]["source"]] == [-1]
    assert await db.fetchval("select array_agg(id order by id) from t") == [1, 2]
    rows = {"query": 'CREATE TABLE u(id BIGINT, person BIGINT, amount BIGINT, "at" DATE)'}
    await data_of(worker, "duckdb", rows)
    for other in ({"type": "duckdb", "table": "u"}, {"path": "out/"}):
        data = await data_of(worker, "transfer", {"source": source, "target": other})
        assert (data["rows_transferred"], data["records_fetched"]) == (2, 3), other
    moving = {"source": source, "target": target, "engine": "spark"}
    error = await fail(worker, "transfer", moving)
    assert "engine spark of a transfer makes no checks" in error.message


@pytest.mark.parametrize("kind", ["postgres", "data", "duckdb", "dataset"])
async def test_the_target_of_every_transfer_is_checked(
    worker: Bench, s3: S3Server, bucket: S3Store, orders: dict[str, Any], kind: str
) -> None:
    query = "SELECT 1 AS id, 5 AS amount UNION ALL SELECT 2, -1"
    rows = [{"id": 1, "amount": 5}, {"id": 2, "amount": -1}]
    source = {
        "postgres": {"type": "postgres", "auth": "db", "query": query},
        "duckdb": {"type": "duckdb", "query": query},
        "data": {"type": "data", "data": rows},
        "dataset": {**orders, "expect": {"row_count": {"min": 3}}},
    }[kind]
    sink = {"path": f"s3://{s3.bucket}/checked-{kind}/", "auth": "lake"}
    failing = {**sink, "expect": {"predicate": "coalesce(amount, 1) > 0"}}
    error = await fail(worker, "transfer", {"source": source, "target": failing})
    assert error.kind == "assertion"
    assert "target: predicate coalesce(amount, 1) > 0 does not hold in 1 of" in error.message
    assert [key for key in keys_of(bucket, f"checked-{kind}") if "_noetl/commits" in key] == []
    wrong = {**sink, "expect": {"not_null": "nope"}}
    error = await fail(worker, "transfer", {"source": source, "target": wrong})
    assert "target: expect.not_null names 'nope', which is no column" in error.message
    target = {**sink, "expect": DIVERTING}
    data = await data_of(worker, "transfer", {"source": source, "target": target})
    assert data["written"]["row_count"] == data["records_fetched"] - 1
    assert [row["amount"] for row in data["diverted"]["target"]] == [-1]
    assert get_met(data)["target: range amount"] is False
    assert get_met(data).get("source: row_count", True)


async def test_an_output_of_postgres_is_checked(
    worker: Bench, s3: S3Server, bucket: S3Store
) -> None:
    sink = {"path": f"s3://{s3.bucket}/checked-query/", "auth": "lake"}
    fields = {"query": "select i as id, i % 7 as k from generate_series(1, 70000) i"}
    broken = {**fields, "sink": {**sink, "expect": {"unique": "k"}}}
    error = await fail(worker, "postgres", broken, auth="db")
    assert error.kind == "assertion"
    assert "unique k does not hold in 69993 of 70000 rows, as {'k': 0}" in error.message
    assert [key for key in keys_of(bucket, "checked-query") if "_noetl/commits" in key] == []
    expect = {"unique": "id", "row_count": {"min": 70000}}
    written = {**fields, "sink": {**sink, "expect": expect}}
    data = await data_of(worker, "postgres", written, auth="db")
    assert get_met(data) == {"output: unique id": True, "output: row_count": True}
