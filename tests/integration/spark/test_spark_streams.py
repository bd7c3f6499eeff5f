"""Streams: files that arrive in a bucket, written batch by batch, each exactly once."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from itertools import count
from typing import Any

import asyncpg
import obstore
import pytest
import pytest_asyncio
from msgspec import structs
from obstore.store import S3Store
from tests.support.buckets import account_of, open_bucket
from tests.support.polling import eventually
from tests.support.servers import S3Server
from tests.support.sparking import answered, spark_bench, spark_call
from tests.support.working import Bench

from noetl_chassis import failpoints
from noetl_contracts.commands.task_metrics import SparkProgress
from noetl_worker.tools.calls.call import Call

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

FOLDERS = count(1)
VERSIONS = count(1)
# What a batch may take on a busy machine.
BATCH_S = 300.0
SCHEMA = "id BIGINT, amount BIGINT"
# State of few groups: each partition of it costs a batch time.
SMALL: dict[str, Any] = {"conf": {"spark.sql.shuffle.partitions": 1}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> AsyncIterator[Bench]:
    async with spark_bench(tmp_path_factory.mktemp("spark")) as found:
        await found.put_credential("lake", account_of(s3), kind="s3")
        # No test waits for the start of the session.
        await answered(found, spark_call(sql="SELECT 1 AS one"))
        yield found


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> S3Store:
    return open_bucket(s3)


@pytest.fixture
def folder(s3: S3Server) -> str:
    """A folder of the bucket that no other test uses."""
    return f"streams/{next(FOLDERS)}"


def stream_call(s3: S3Server, folder: str, **fields: Any) -> Call:
    """A stream from `in` of a folder to its `out`; fields replace those of the call."""
    name = folder.replace("/", "-")
    fields = {
        "mode": "stream",
        "inputs": {
            "orders": {
                "path": f"s3://{s3.bucket}/{folder}/in/",
                "auth": "lake",
                "format": "ndjson",
                "schema": SCHEMA,
            }
        },
        "sql": "SELECT id, amount FROM orders",
        "follow": {"checkpoint": name},
        "sink": {"path": f"s3://{s3.bucket}/{folder}/out/", "auth": "lake", "mode": "append"},
        **fields,
    }
    return spark_call(**fields)


def put_rows(bucket: S3Store, folder: str, name: str, ids: range) -> None:
    """Let a file arrive, with one row of amount 10 for each number."""
    lines = "".join(f'{{"id": {number}, "amount": 10}}\n' for number in ids)
    obstore.put(bucket, f"{folder}/in/{name}.ndjson", lines.encode())


async def read_rows(worker: Bench, s3: S3Server, folder: str, sql: str = "SELECT * FROM o") -> Any:
    """The rows that a stream has written."""
    path = {"path": f"s3://{s3.bucket}/{folder}/out/", "auth": "lake"}
    return (await answered(worker, spark_call(sql=sql, inputs={"o": path})))["rows"]


async def list_ids(worker: Bench, s3: S3Server, folder: str) -> list[int]:
    """The ids that a stream has written, in order."""
    return [
        row["id"] for row in await read_rows(worker, s3, folder, "SELECT id FROM o ORDER BY id")
    ]


async def test_each_run_takes_up_the_files_that_are_new(
    worker: Bench, s3: S3Server, bucket: S3Store, folder: str
) -> None:
    put_rows(bucket, folder, "a", range(10))
    put_rows(bucket, folder, "b", range(10, 20))
    first = await answered(worker, stream_call(s3, folder))
    assert first["row_count"] == 20
    assert first["stream"] == {
        "checkpoint": folder.replace("/", "-"),
        "batch_count": 1,
        "file_count": 2,
        "last_batch": 0,
        "ended_by": "available_now",
    }
    put_rows(bucket, folder, "c", range(20, 25))
    second = await answered(worker, stream_call(s3, folder))
    assert second["stream"]["last_batch"] == 1
    assert await list_ids(worker, s3, folder) == list(range(25))

    idle = await answered(worker, stream_call(s3, folder))
    assert idle["stream"]["last_batch"] is None
    assert await list_ids(worker, s3, folder) == list(range(25))


async def failed(worker: Bench, call: Call) -> Any:
    """The error of a call that must not succeed."""
    outcome = await worker.tools.run(call)
    assert outcome.error is not None, outcome.data
    return outcome.error


async def run_sql(dsn: str, text: str) -> list[Any]:
    """Run a statement in a database, and return its rows."""
    connection = await asyncpg.connect(dsn)
    try:
        return list(await connection.fetch(text))
    finally:
        await connection.close()


async def fail_at(plan: str, worker: Bench, call: Call) -> None:
    """Run a call that ends at a failpoint."""
    failpoints.arm_plan(failpoints.parse_plan(plan))
    try:
        with pytest.raises(failpoints.FailpointError):
            await worker.tools.run(call)
    finally:
        failpoints.arm_plan(None)


async def test_files_that_arrive_while_it_runs_are_read_until_it_is_cancelled(
    worker: Bench, s3: S3Server, bucket: S3Store, folder: str
) -> None:
    told: list[SparkProgress] = []

    async def tell(progress: SparkProgress) -> None:
        told.append(progress)

    put_rows(bucket, folder, "a", range(10))
    follow = {"checkpoint": folder.replace("/", "-"), "trigger": "100ms", "files_per_batch": 1}
    call = structs.replace(stream_call(s3, folder, follow=follow), tell_progress=tell)
    running = asyncio.ensure_future(worker.tools.run(call))

    async def has_told(rows: int) -> bool:
        return any(item.stream and item.stream.rows == rows for item in told)

    await eventually(partial(has_told, 10), timeout_s=BATCH_S)
    put_rows(bucket, folder, "b", range(10, 20))
    put_rows(bucket, folder, "c", range(20, 30))
    await eventually(partial(has_told, 30), timeout_s=BATCH_S)
    latest = told[-1].stream
    assert latest is not None
    assert (latest.batch, latest.files, latest.files_behind) == (2, 3, 0)
    assert latest.batch_s > 0
    assert any(item.stream and item.stream.input_rows_per_s > 0 for item in told)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    put_rows(bucket, folder, "d", range(30, 35))
    again = await answered(worker, stream_call(s3, folder))
    # The totals are those of the execution.
    assert again["stream"]["batch_count"] == 4
    assert await list_ids(worker, s3, folder) == list(range(35))


async def test_what_a_stream_leaves_that_ends_after_a_time_is_read_by_the_next(
    worker: Bench, s3: S3Server, bucket: S3Store, folder: str
) -> None:
    put_rows(bucket, folder, "a", range(10))
    follow = {"checkpoint": folder.replace("/", "-"), "trigger": "0s", "until": "5s"}
    done = await answered(worker, stream_call(s3, folder, follow=follow))
    assert done["stream"]["ended_by"] == "until"
    # A busy machine may end it before its first batch; the next run has what is left.
    await answered(worker, stream_call(s3, folder))
    assert await list_ids(worker, s3, folder) == list(range(10))


@pytest.mark.parametrize(
    ("place", "point"),
    [
        ("path", "worker.batch.begun"),
        ("path", "worker.batch.written"),
        ("delta", "worker.batch.written"),
        ("iceberg", "worker.batch.written"),
        ("table", "worker.batch.written"),
    ],
)
async def test_a_batch_that_is_repeated_commits_once(
    worker: Bench,
    s3: S3Server,
    bucket: S3Store,
    folder: str,
    point: str,
    place: str,
    database: str,
) -> None:
    read: dict[str, Any] = {place: f"s3://{s3.bucket}/{folder}/out", "auth": "lake"}
    if place == "iceberg":
        await worker.put_credential("catalog", {"dsn": database}, version=next(VERSIONS))
        table = f"shop.t{folder.partition('/')[2]}"
        warehouse = f"s3://{s3.bucket}/{folder}/warehouse"
        read["iceberg"] = {"catalog": "catalog", "warehouse": warehouse, "table": table}
    if place == "table":
        await worker.put_credential("db", {"dsn": database}, version=next(VERSIONS))
        await run_sql(database, "CREATE TABLE orders (id bigint, amount bigint)")
        read = {"auth": "db", "table": "public.orders"}
    sink = {**read, "mode": "append"}
    follow = {"checkpoint": folder.replace("/", "-"), "files_per_batch": 1}
    for number in range(4):
        put_rows(bucket, folder, f"f{number}", range(number * 5, number * 5 + 5))
    await fail_at(f"{point}:error@2", worker, stream_call(s3, folder, follow=follow, sink=sink))
    # What arrives in between belongs to a later batch.
    put_rows(bucket, folder, "f1a", range(20, 25))
    done = await answered(worker, stream_call(s3, folder, follow=follow, sink=sink))
    assert done["stream"]["batch_count"] == 5
    assert done["row_count"] == 25
    rows = await answered(
        worker, spark_call(sql="SELECT id FROM o ORDER BY id", inputs={"o": read})
    )
    assert [row["id"] for row in rows["rows"]] == list(range(25))
    if place == "table":
        marked = "SELECT frame_id FROM noetl_effect WHERE frame_id <> '' ORDER BY committed_at"
        markers = await run_sql(database, marked)
        assert [row["frame_id"] for row in markers] == [f"batch/{number}" for number in range(5)]
        left = "SELECT FROM pg_tables WHERE tablename LIKE 'noetl_staging%'"
        assert await run_sql(database, left) == []


async def test_sums_go_on_from_the_state_of_the_run_before(
    worker: Bench, s3: S3Server, bucket: S3Store, folder: str
) -> None:
    fields: dict[str, Any] = {
        "session": SMALL,
        "sql": "SELECT id % 2 AS odd, sum(amount) AS total, count(*) AS n FROM orders GROUP BY 1",
        "sink": {
            "delta": f"s3://{s3.bucket}/{folder}/out",
            "auth": "lake",
            "mode": "upsert",
            "key": ["odd"],
        },
    }
    read = {"delta": f"s3://{s3.bucket}/{folder}/out", "auth": "lake"}

    async def read_totals() -> list[Any]:
        call = spark_call(sql="SELECT odd, total, n FROM o ORDER BY odd", inputs={"o": read})
        return (await answered(worker, call))["rows"]

    put_rows(bucket, folder, "a", range(10))
    await answered(worker, stream_call(s3, folder, **fields))
    assert await read_totals() == [
        {"odd": 0, "total": 50, "n": 5},
        {"odd": 1, "total": 50, "n": 5},
    ]
    put_rows(bucket, folder, "b", range(10, 14))
    await fail_at("worker.batch.written:error", worker, stream_call(s3, folder, **fields))
    put_rows(bucket, folder, "c", range(14, 15))
    await answered(worker, stream_call(s3, folder, **fields))
    assert await read_totals() == [
        {"odd": 0, "total": 80, "n": 8},
        {"odd": 1, "total": 70, "n": 7},
    ]
    changed = {**fields, "sql": str(fields["sql"]).replace("sum(amount)", "max(amount)")}
    error = await failed(worker, stream_call(s3, folder, **changed))
    assert error.kind == "validation"
    assert "the query has changed since checkpoint" in error.message
    assert "another follow.checkpoint" in error.message


async def test_a_query_without_state_may_change_but_not_its_places(
    worker: Bench, s3: S3Server, bucket: S3Store, folder: str
) -> None:
    put_rows(bucket, folder, "a", range(5))
    await answered(worker, stream_call(s3, folder))
    put_rows(bucket, folder, "b", range(5, 10))
    sql = "SELECT id, amount FROM orders WHERE id <> 7"
    await answered(worker, stream_call(s3, folder, sql=sql))
    assert await list_ids(worker, s3, folder) == [0, 1, 2, 3, 4, 5, 6, 8, 9]

    sink = {"path": f"s3://{s3.bucket}/{folder}/other/", "auth": "lake", "mode": "append"}
    error = await failed(worker, stream_call(s3, folder, sink=sink))
    assert error.kind == "validation"
    assert f"writes to s3://{s3.bucket}/{folder}/out/, not s3://{s3.bucket}" in error.message


async def test_files_of_other_columns_are_told_and_the_stream_goes_on_without_them(
    worker: Bench, s3: S3Server, bucket: S3Store, folder: str
) -> None:
    put_rows(bucket, folder, "a", range(5))
    await answered(worker, stream_call(s3, folder))
    key = f"{folder}/in/b.ndjson"
    obstore.put(bucket, key, b'{"id": "five", "amount": 10}\n')
    error = await failed(worker, stream_call(s3, folder))
    assert error.kind == "schema", error
    assert "b.ndjson" in error.message
    assert "id" in error.message
    # The batch is planned: a file that is repaired in place is read by it.
    obstore.put(bucket, key, b'{"id": 5, "amount": 10}\n')
    await answered(worker, stream_call(s3, folder))
    assert await list_ids(worker, s3, folder) == list(range(6))


async def test_checks_are_of_all_batches_and_rows_that_break_them_are_shown(
    worker: Bench, s3: S3Server, bucket: S3Store, folder: str
) -> None:
    put_rows(bucket, folder, "a", range(3))
    obstore.put(bucket, f"{folder}/in/b.ndjson", b'{"id": 3, "amount": -1}\n')
    put_rows(bucket, folder, "c", range(4, 6))
    sink = {
        "path": f"s3://{s3.bucket}/{folder}/out/",
        "auth": "lake",
        "mode": "append",
        "expect": {"range": {"amount": {"min": 0}}, "on_fail": "divert"},
    }
    follow = {"checkpoint": folder.replace("/", "-"), "files_per_batch": 1}
    done = await answered(worker, stream_call(s3, folder, sink=sink, follow=follow))
    assert done["stream"]["batch_count"] == 3
    (check,) = done["checks"]
    assert (check["is_met"], check["failed_rows"]) == (False, 1)
    assert [row["id"] for row in done["diverted"]["output"]] == [3]
    assert await list_ids(worker, s3, folder) == [0, 1, 2, 4, 5]


async def test_a_file_that_changes_after_it_was_read_is_told(
    worker: Bench, s3: S3Server, bucket: S3Store, folder: str
) -> None:
    put_rows(bucket, folder, "a", range(5))
    await answered(worker, stream_call(s3, folder))
    put_rows(bucket, folder, "a", range(9))
    error = await failed(worker, stream_call(s3, folder))
    assert error.kind == "validation"
    assert "a.ndjson had" in error.message
    assert "a stream reads each file once" in error.message


async def test_what_no_batch_can_do_is_refused(
    worker: Bench, s3: S3Server, bucket: S3Store, folder: str
) -> None:
    sink = {"path": f"s3://{s3.bucket}/{folder}/out/", "auth": "lake"}
    error = await failed(worker, stream_call(s3, folder, sink=sink))
    assert "output.mode is error" in error.message
    error = await failed(worker, stream_call(s3, folder, sink=None))
    assert "mode stream writes its batches" in error.message
    inputs = {"orders": {"path": f"s3://{s3.bucket}/{folder}/in/", "auth": "lake"}}
    error = await failed(worker, stream_call(s3, folder, inputs=inputs))
    assert error.kind == "not_found"
    assert "no file has arrived" in error.message
    put_rows(bucket, folder, "a", range(5))
    error = await failed(worker, stream_call(s3, folder, sql="SELECT 1 AS one"))
    assert "the SQL does not read input 'orders'" in error.message
    sums = "SELECT sum(amount) AS total FROM orders"
    error = await failed(worker, stream_call(s3, folder, sql=sums))
    assert error.kind == "db_error", error
    assert "append" in error.message.lower()
    inputs = {"orders": {**inputs["orders"], "format": "ndjson", "schema": SCHEMA}}
    plain = {**sink, "mode": "overwrite"}
    error = await failed(worker, stream_call(s3, folder, inputs=inputs, sink=plain))
    assert "the SQL makes no groups" in error.message
    late = {"checkpoint": "late", "watermark": {"column": "amount", "delay": "1m"}}
    error = await failed(worker, stream_call(s3, folder, follow=late))
    assert "'amount', which is bigint: it takes a moment" in error.message
    late["watermark"] = {"column": "at", "delay": "1m"}
    error = await failed(worker, stream_call(s3, folder, follow=late))
    assert "names 'at', which is no column of input 'orders'" in error.message


async def test_tables_take_changed_groups_or_all_of_them(
    worker: Bench, s3: S3Server, bucket: S3Store, folder: str, database: str
) -> None:
    await worker.put_credential("db", {"dsn": database}, version=next(VERSIONS))
    await run_sql(database, "CREATE TABLE rates (id bigint, rate bigint)")
    await run_sql(database, "INSERT INTO rates SELECT n, n % 2 FROM generate_series(0, 99) AS n")
    await run_sql(database, "CREATE TABLE sums (rate bigint primary key, total numeric, n bigint)")
    # The rows of a database are read once, at the beginning of a run.
    inputs = {
        **stream_call(s3, folder).fields["inputs"],
        "rates": {"auth": "db", "table": "rates"},
    }
    fields: dict[str, Any] = {
        "inputs": inputs,
        "session": SMALL,
        "sql": "SELECT r.rate, sum(o.amount) AS total, count(*) AS n "
        "FROM orders o JOIN rates r ON r.id = o.id GROUP BY r.rate",
    }
    name = folder.replace("/", "-")
    follow = {"checkpoint": name, "input": "orders", "files_per_batch": 1}
    sink = {"auth": "db", "table": "sums", "mode": "upsert", "key": ["rate"]}
    put_rows(bucket, folder, "a", range(10))
    put_rows(bucket, folder, "b", range(10, 13))
    call = stream_call(s3, folder, follow=follow, sink=sink, **fields)
    await fail_at("worker.batch.written:error@2", worker, call)
    done = await answered(worker, call)
    assert done["written"]["path"] == "sums"
    totals = "SELECT rate, total::int, n FROM sums ORDER BY rate"
    assert [tuple(row) for row in await run_sql(database, totals)] == [(0, 70, 7), (1, 60, 6)]

    everything = {"auth": "db", "table": "sums", "mode": "overwrite"}
    other = {"checkpoint": f"{name}-all", "input": "orders"}
    await run_sql(database, "INSERT INTO sums VALUES (7, 7, 7)")
    await answered(worker, stream_call(s3, folder, follow=other, sink=everything, **fields))
    assert [tuple(row) for row in await run_sql(database, totals)] == [(0, 70, 7), (1, 60, 6)]

    error = await failed(worker, stream_call(s3, folder, follow=other, sink=sink, **fields))
    assert error.kind == "validation", error
    for sink, text in (
        ({**everything, "mode": "replace"}, "a table takes append, upsert by 'key', or overwrite"),
        ({**everything, "table": "nope"}, "there is no table 'nope'"),
        ({**everything, "auth": "lake"}, "credentials of type postgres"),
    ):
        fresh = {"checkpoint": f"{name}-refused", "input": "orders"}
        call = stream_call(s3, folder, follow=fresh, sink=sink, **fields)
        assert text in (await failed(worker, call)).message
    error = await failed(worker, spark_call(sql="SELECT 1 AS id", sink=everything))
    assert "output.table is for mode stream" in error.message


async def test_groups_of_time_are_written_once_no_row_of_them_may_come(
    worker: Bench, s3: S3Server, bucket: S3Store, folder: str
) -> None:
    def put_moments(name: str, *moments: str) -> None:
        lines = "".join(f'{{"id": 1, "at": "2024-01-01T{text}:00Z"}}\n' for text in moments)
        obstore.put(bucket, f"{folder}/in/{name}.ndjson", lines.encode())

    place = stream_call(s3, folder).fields["inputs"]["orders"]
    fields: dict[str, Any] = {
        "inputs": {"orders": {**place, "schema": "id BIGINT, at TIMESTAMP"}},
        "session": SMALL,
        "sql": "SELECT window.start AS hour, count(*) AS n FROM orders "
        "GROUP BY window(at, '1 hour')",
        "follow": {
            "checkpoint": folder.replace("/", "-"),
            "watermark": {"column": "at", "delay": "10m"},
        },
    }
    put_moments("a", "01:10", "01:50", "02:05")
    done = await answered(worker, stream_call(s3, folder, **fields))
    # The watermark is at 01:55: the first hour may grow.
    assert (done["row_count"], done["stream"]["late_row_count"]) == (0, 0)
    put_moments("b", "01:58", "03:20")
    await fail_at("worker.batch.begun:error", worker, stream_call(s3, folder, **fields))
    done = await answered(worker, stream_call(s3, folder, **fields))
    assert done["stream"]["late_row_count"] == 0
    hours = "SELECT hour(hour) AS hour, n FROM o ORDER BY hour"
    assert await read_rows(worker, s3, folder, hours) == [{"hour": 1, "n": 3}, {"hour": 2, "n": 1}]
    put_moments("c", "01:59", "03:30")
    late = await answered(worker, stream_call(s3, folder, **fields))
    assert late["stream"]["late_row_count"] == 1
    assert await read_rows(worker, s3, folder, hours) == [{"hour": 1, "n": 3}, {"hour": 2, "n": 1}]


async def test_rows_that_do_not_fit_are_counted_once_and_all_groups_overwrite_a_dataset(
    worker: Bench, s3: S3Server, bucket: S3Store, folder: str
) -> None:
    place = {**stream_call(s3, folder).fields["inputs"]["orders"], "format": "csv"}
    fields: dict[str, Any] = {
        "inputs": {"orders": {**place, "on_bad_row": "divert"}},
        "session": SMALL,
        "sql": "SELECT id % 2 AS odd, sum(amount) AS total FROM orders GROUP BY 1",
        "follow": {"checkpoint": folder.replace("/", "-"), "files_per_batch": 1},
        "sink": {
            "path": f"s3://{s3.bucket}/{folder}/out/",
            "auth": "lake",
            "mode": "overwrite",
        },
    }
    obstore.put(bucket, f"{folder}/in/a.csv", b"id,amount\n1,10\nx,10\n2,10\n")
    obstore.put(bucket, f"{folder}/in/b.csv", b"id,amount\n3,10\n4,y\n")
    await fail_at("worker.batch.written:error@2", worker, stream_call(s3, folder, **fields))
    done = await answered(worker, stream_call(s3, folder, **fields))
    rejected = done["rejected"]["orders"]
    assert rejected["row_count"] == 2
    assert [(row["column"], row["text"]) for row in rejected["rows"]] == [
        *(("id", "x"), ("amount", "y")),
    ]
    totals = await read_rows(worker, s3, folder, "SELECT odd, total FROM o ORDER BY odd")
    assert totals == [{"odd": 0, "total": 10}, {"odd": 1, "total": 20}]
