"""Bad files end in the right rows, or in an error that names file and place and says what to do.

A real Spark session reads each from a real bucket. Fewer rows without a word are never right.
"""

from collections.abc import AsyncIterator
from itertools import count

import obstore
import pytest
import pytest_asyncio
from obstore.store import S3Store
from tests.support.bad_files import CASES, Case
from tests.support.bad_rows import BAD_ROWS
from tests.support.buckets import account_of, open_bucket
from tests.support.servers import S3Server
from tests.support.sparking import spark_bench, spark_call
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
    return f"s3://{s3.bucket}/bad{next(FOLDERS)}/"


@pytest.mark.parametrize("case", [*CASES, *BAD_ROWS], ids=lambda case: case.name)
async def test_bad_files_end_in_the_right_rows_or_in_an_error_that_names_them(
    worker: Bench, bucket: S3Store, folder: str, case: Case
) -> None:
    for name, data in case.files.items():
        key = f"{folder.split('/', 3)[3]}{name}"
        obstore.put(bucket, key, data if isinstance(data, bytes) else data())
    path = case.source.get("path", "FOLDER").replace("FOLDER", folder)
    source = {"auth": "lake", **case.source, "path": path}
    found = await worker.tools.run(spark_call(sql=case.sql, inputs={"t": source}))
    if case.rows is not None:
        assert found.error is None, found.error
        assert found.data["rows"] == case.rows
        told = found.data.get("rejected", {}).get("t", {"row_count": 0})
        assert told["row_count"] == case.rejected
        return
    assert found.error is not None, found.data
    said = [part.replace("FOLDER", folder) for part in case.said]
    assert found.error.kind == case.kind, found.error
    assert [part for part in said if part not in found.error.message] == [], found.error.message
