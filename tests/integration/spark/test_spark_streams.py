"""Streams: files that arrive in a bucket, written batch by batch, each exactly once."""

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import obstore
import pytest
import pytest_asyncio
from obstore.store import S3Store
from tests.support.buckets import account_of, open_bucket
from tests.support.servers import S3Server
from tests.support.sparking import answered, spark_bench, spark_call
from tests.support.working import Bench

from noetl_worker.tools.calls.call import Call

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

FOLDERS = count(1)
SCHEMA = "id BIGINT, amount BIGINT"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> AsyncIterator[Bench]:
    async with spark_bench(tmp_path_factory.mktemp("spark")) as found:
        await found.put_credential("lake", account_of(s3), kind="s3")
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
        "stream": {"checkpoint": name},
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
