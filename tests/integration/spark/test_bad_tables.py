"""Bad tables and sinks end in errors that name table, column and credential; nothing is lost."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import asyncpg
import obstore
import pytest
import pytest_asyncio
from msgspec import structs
from obstore.store import S3Store
from tests.support.buckets import account_of, keys_of, open_bucket
from tests.support.calls import call_of
from tests.support.servers import PostgresServer, S3Server
from tests.support.sparking import answered, spark_bench, spark_call
from tests.support.working import Bench

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

FOLDERS = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> AsyncIterator[Bench]:
    async with spark_bench(tmp_path_factory.mktemp("spark")) as found:
        await found.put_credential("lake", account_of(s3), kind="s3")
        await found.put_credential("wrong", {**account_of(s3), "secret_key": "no"}, kind="s3")
        yield found


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> S3Store:
    return open_bucket(s3)


@pytest.fixture
def folder(s3: S3Server) -> str:
    return f"s3://{s3.bucket}/table{next(FOLDERS)}/"


@pytest.mark.parametrize(
    ("sink", "rows", "kind", "said"),
    [
        ({"partition_by": ["nope"]}, [{"id": 1}], "validation", ("'nope'", "no column")),
        ({"path": "s3://nobody-has-this/t/"}, [{"id": 1}], "not_found", ("no such bucket",)),
        ({"auth": "wrong"}, [{"id": 1}], "auth", ("credential 'wrong'", "check its keys")),
        ({"compression": "lzma"}, [{"id": 1}], "validation", ("compression is 'lzma'", "lz4")),
        ({"format": "parket"}, [{"id": 1}], "validation", ("did you mean 'parquet'",)),
        ({"mode": "upsert", "key": "id"}, [{"id": 1}], "validation", ("iceberg and delta",)),
        ({"path": "../t/", "auth": None}, [{"id": 1}], "config", ("climbs out", "..")),
        ({"partition_by": ["id"]}, [{"id": 0.5, "n": 1}], "schema", ("'id'", "double")),
    ],
)
async def test_a_sink_that_cannot_be_written_says_why(
    worker: Bench, folder: str, sink: Any, rows: Any, kind: str, said: tuple[str, ...]
) -> None:
    call = spark_call(
        sql="SELECT * FROM r",
        inputs={"r": rows},
        sink={"path": folder, "auth": "lake", **sink},
    )
    found = await worker.tools.run(structs.replace(call, task="t", visit=1))
    assert found.error is not None, found.data
    assert found.error.kind == kind, found.error
    assert [part for part in said if part not in found.error.message] == [], found.error.message


async def test_values_that_no_folder_can_be_named_by_come_back(worker: Bench, folder: str) -> None:
    values = ["a/b", "..", ".", "%2F", "x=y", "Zoë ", "*?[a]", "-", "a\x00b", None]
    rows = [{"id": number, "day": value} for number, value in enumerate(values)]
    place = {"path": folder, "auth": "lake"}
    call = spark_call(
        sql="SELECT * FROM r",
        inputs={"r": {"columns": ["id", "day"], "rows": rows}},
        sink={**place, "partition_by": ["day"]},
    )
    await answered(worker, structs.replace(call, task="t", visit=1))
    query = "SELECT id, day FROM t ORDER BY id"
    found = await answered(worker, spark_call(sql=query, inputs={"t": place}))
    assert [row["day"] for row in found["rows"]] == values


@pytest.mark.parametrize("place", ["delta", "iceberg"])
async def test_two_writers_at_once_both_land(
    worker: Bench, s3: S3Server, dsn: str, folder: str, place: str
) -> None:
    del dsn
    where = _lake_place(place, s3, folder)
    first = spark_call(sql="SELECT * FROM r", inputs={"r": [{"id": 0}]}, sink=where)
    await answered(worker, structs.replace(first, task="t0", visit=1))
    calls = [
        structs.replace(
            spark_call(
                sql="SELECT * FROM r",
                inputs={"r": [{"id": number}]},
                sink={**where, "mode": "append"},
            ),
            task=f"t{number}",
            visit=1,
        )
        for number in range(1, 5)
    ]
    ended = await asyncio.gather(*[worker.tools.run(call) for call in calls])
    landed = [number for number, one in enumerate(ended, 1) if one.error is None]
    refused = [one.error for one in ended if one.error is not None]
    assert all(error.retryable for error in refused), refused
    query = "SELECT id FROM t ORDER BY id"
    found = await answered(worker, spark_call(sql=query, inputs={"t": where}))
    assert [row["id"] for row in found["rows"]] == [0, *landed]


def _lake_place(kind: str, s3: S3Server, folder: str) -> dict[str, Any]:
    if kind == "delta":
        return {"delta": f"{folder}table", "auth": "lake"}
    name = f"bad.t{folder.rstrip('/').rsplit('table', 1)[1]}"
    about = {"catalog": "db", "warehouse": f"s3://{s3.bucket}/warehouse", "table": name}
    return {"iceberg": about, "auth": "lake"}


@pytest.mark.parametrize("place", ["delta", "iceberg"])
async def test_a_lake_table_that_is_gone_or_spoiled_is_named(
    worker: Bench, s3: S3Server, bucket: S3Store, dsn: str, folder: str, place: str
) -> None:
    del dsn
    where = _lake_place(place, s3, folder)
    read = {"sql": "SELECT * FROM t", "inputs": {"t": where}}
    missing = await worker.tools.run(spark_call(**read))
    assert missing.error is not None
    assert missing.error.kind == "not_found", missing.error
    made = spark_call(sql="SELECT * FROM r", inputs={"r": [{"id": 1, "n": 1}]}, sink=where)
    await answered(worker, structs.replace(made, task="t", visit=1))
    shown = where.get("delta", "") or "bad.t"
    below = "warehouse" if place == "iceberg" else folder.split("/", 3)[3]
    for ending in (".parquet", ".json"):
        for key in keys_of(bucket, below):
            if key.endswith(ending):
                obstore.delete(bucket, key)
        gone = await worker.tools.run(spark_call(**read))
        assert gone.error is not None, gone.data
        assert gone.error.kind in ("not_found", "parse", "storage_access"), gone.error
        assert shown in gone.error.message or "s3://" in gone.error.message, gone.error


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dsn(worker: Bench, postgres: PostgresServer) -> AsyncIterator[str]:
    """One database for all tests, and credentials of it that do not open it."""
    database = await postgres.create_database("bad_inputs")
    host = database.rpartition("@")[2].partition("/")[0]
    await worker.put_credential("db", {"dsn": database})
    await worker.put_credential("poor", {"dsn": f"postgresql://poor:poor@{host}/bad_inputs"})
    await worker.put_credential("liar", {"dsn": f"postgresql://poor:no@{host}/bad_inputs"})
    await worker.put_credential("nowhere", {"dsn": "postgresql://a:b@127.0.0.1:1/bad_inputs"})
    connection = await asyncpg.connect(database)
    await connection.execute(
        "CREATE ROLE poor LOGIN PASSWORD 'poor';"
        "CREATE TABLE orders (id int PRIMARY KEY, n int NOT NULL, at date, c char(2), s smallint);"
        "INSERT INTO orders VALUES (1, 1, 'infinity')"
    )
    await connection.close()
    yield database
    await postgres.drop_database("bad_inputs")
    await postgres.execute_async("DROP ROLE poor")


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        ({"table": "nope"}, "validation", ("nope", "credential 'db'")),
        ({"query": "SELECT nope FROM orders"}, "db_error", ("nope", "credential 'db'")),
        ({"query": "SELEC 1"}, "db_error", ("SELEC", "credential 'db'")),
        ({"query": "SELECT 1; SELECT 2"}, "validation", ("one",)),
        ({"table": "orders", "partition_column": "nope", "partitions": 2}, "", ("nope",)),
        ({"table": "orders", "auth": "liar"}, "auth", ("credential 'liar'",)),
        ({"table": "orders", "auth": "poor"}, "db_error", ("permission denied", "orders")),
        ({"table": "orders", "auth": "nowhere"}, "db_connection", ("credential 'nowhere'",)),
        ({"table": "orders"}, "schema", ("column 'at'", "infinity")),
        ({"query": "SELECT 1e40::numeric AS big"}, "schema", ("column 'big'",)),
        ({"query": "SELECT 1 AS a, 2 AS a"}, "schema", ("a",)),
        ({"query": "SELECT pg_terminate_backend(pg_backend_pid())"}, "db_connection", ("'db'",)),
    ],
)
async def test_a_table_that_cannot_be_read_is_named(
    worker: Bench, dsn: str, source: dict[str, Any], kind: str, said: tuple[str, ...]
) -> None:
    del dsn
    inputs = {"t": {"auth": "db", **source}}
    found = await worker.tools.run(spark_call(sql="SELECT * FROM t", inputs=inputs))
    assert found.error is not None, found.data
    assert found.error.kind == kind or not kind, found.error
    assert [part for part in said if part not in found.error.message] == [], found.error.message


@pytest.fixture
def put_lines(bucket: S3Store, folder: str) -> Callable[[Any], str]:
    """Put rows as lines of JSON into a folder, and return it."""

    def put_rows(rows: Any) -> str:
        lines = "\n".join(json.dumps(row) for row in rows)
        obstore.put(bucket, f"{folder.split('/', 3)[3]}a.ndjson", lines.encode())
        return folder

    return put_rows


@pytest.mark.parametrize(
    ("rows", "target", "kind", "said"),
    [
        ([{"id": 2, "n": None}], {}, "db_constraint", ("orders", "n")),
        ([{"id": 1, "n": 1}], {}, "db_constraint", ("orders", "id")),
        ([{"id": 2, "n": 1, "c": "abc"}], {}, "", ("too long", "c")),
        ([{"id": 2, "n": 1, "s": 70000}], {}, "", ("70000", "s")),
        ([{"id": 2, "n": 1, "zz": 1}], {}, "validation", ("zz",)),
        ([{"id": 2, "n": "x"}], {}, "", ("x", "n")),
        ([{"id": 2, "n": 1}], {"table": "nope"}, "validation", ("nope",)),
        ([{"id": 2, "n": 1}], {"mode": "merge", "key": "nope"}, "validation", ("nope",)),
        ([{"id": 2, "n": 1}], {"mode": "upsert", "key": "n"}, "db_error", ("unique", "merge")),
        ([{"id": 2, "n": 1}, {"id": 2, "n": 2}], {"mode": "merge", "key": "id"}, "", ("id = 2",)),
        ([{"id": 2, "n": 1}], {"auth": "poor"}, "db_error", ("permission denied",)),
        ([{"id": 2, "n": 1}], {"auth": "nowhere"}, "db_connection", ("'nowhere'",)),
    ],
)
@pytest.mark.parametrize("engine", ["io", "spark"])
async def test_rows_that_a_table_does_not_take_are_named(
    worker: Bench,
    dsn: str,
    put_lines: Callable[[Any], str],
    engine: str,
    rows: Any,
    target: dict[str, Any],
    kind: str,
    said: tuple[str, ...],
) -> None:
    move = {
        "engine": engine,
        "source": {"path": put_lines(rows), "auth": "lake"},
        "target": {"type": "postgres", "auth": "db", "table": "orders", **target},
    }
    found = await worker.tools.run(call_of("transfer", move, timeout_s=240))
    assert found.error is not None, found.data
    assert found.error.kind == kind or not kind, found.error
    assert [part for part in said if part not in found.error.message] == [], found.error.message
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("SELECT count(*) FROM orders") == 1
    await connection.close()


async def test_a_table_that_is_locked_ends_in_time_and_names_the_credential(
    worker: Bench, dsn: str, postgres: PostgresServer
) -> None:
    await postgres.execute_async("ALTER DATABASE bad_inputs SET lock_timeout = '1s'")
    connection = await asyncpg.connect(dsn)
    held = connection.transaction()
    await held.start()
    await connection.execute("LOCK TABLE orders")
    inputs = {"t": {"auth": "db", "query": "SELECT id, n FROM orders"}}
    found = await worker.tools.run(spark_call(sql="SELECT * FROM t", inputs=inputs))
    await held.rollback()
    await connection.close()
    await postgres.execute_async("ALTER DATABASE bad_inputs RESET lock_timeout")
    assert found.error is not None, found.data
    assert "lock timeout" in found.error.message, found.error
    assert "credential 'db'" in found.error.message, found.error
    again = await answered(worker, spark_call(sql="SELECT * FROM t", inputs=inputs))
    assert again["rows"] == [{"id": 1, "n": 1}]
