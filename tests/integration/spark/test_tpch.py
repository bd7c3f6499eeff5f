"""The queries of TPC-H at a small scale: Spark tasks over three sources give DuckDB's answers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import obstore
import pytest
import pytest_asyncio
from msgspec import structs
from tests.proof.tpch import describe_input
from tests.support import tpch
from tests.support.buckets import account_of, open_bucket
from tests.support.calls import call_of
from tests.support.servers import PostgresServer, S3Server
from tests.support.sparking import answered, spark_bench, spark_call
from tests.support.working import Bench

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SCALE = 0.01
DATABASE = "tpch_small"
QUERIES = tpch.read_queries(SCALE)
# Each shape of a query over the other two sources: joins, subqueries, outer joins, groups, limits.
SOME = ("q01", "q02", "q09", "q13", "q16", "q21", "q22")
ASKED = [("parquet", name) for name in QUERIES] + [
    (source, name) for source in ("postgres", "iceberg") for name in SOME
]

Answers = dict[str, list[tpch.Row]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tpch.make_tables(tmp_path_factory.mktemp("tpch"), SCALE)


@pytest.fixture(scope="module")
def answers(files: Path) -> Answers:
    return tpch.answer_queries(files, QUERIES)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(
    tmp_path_factory: pytest.TempPathFactory, s3: S3Server, postgres: PostgresServer, files: Path
) -> AsyncIterator[Bench]:
    dsn = await postgres.create_database(DATABASE)
    await postgres.execute_async((tpch.QUERIES / "tables.sql").read_text(), database=DATABASE)
    async with spark_bench(tmp_path_factory.mktemp("spark")) as found:
        await found.put_credential("lake", account_of(s3), kind="s3")
        await found.put_credential("tpch_db", {"dsn": dsn})
        for table in tpch.TABLES:
            obstore.put(open_bucket(s3), f"tpch/{table}.parquet", files / f"{table}.parquet")
            await load_table(found, table, s3.bucket)
        yield found
    await postgres.drop_database(DATABASE)


async def load_table(worker: Bench, table: str, bucket: str) -> None:
    source: Any = describe_input("parquet", table, bucket)
    move = {"source": source, "target": {"type": "postgres", "auth": "tpch_db", "table": table}}
    await answered(worker, call_of("transfer", move, timeout_s=240))
    sink = describe_input("iceberg", table, bucket)
    call = spark_call(sql="SELECT * FROM t", inputs={"t": source}, sink=sink)
    await answered(worker, structs.replace(call, task=table, visit=1))


@pytest.mark.parametrize(("source", "name"), ASKED)
async def test_a_query_gives_the_rows_of_duckdb(
    worker: Bench, s3: S3Server, answers: Answers, source: str, name: str
) -> None:
    inputs = {
        table: describe_input(source, table, s3.bucket) for table in tpch.list_tables(QUERIES[name])
    }
    found = await answered(worker, spark_call(sql=QUERIES[name], inputs=inputs))
    assert tpch.find_difference(found["rows"], answers[name]) is None
