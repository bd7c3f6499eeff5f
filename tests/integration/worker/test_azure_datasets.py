"""Datasets in a container of Azure, on Azurite."""

import base64
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from azure.storage.blob import ContainerClient
from tests.support import clouds
from tests.support.calls import call_of
from tests.support.working import Bench, bench

pytestmark = pytest.mark.skipif(not clouds.has_azure(), reason=clouds.AZURE_ABSENT)

PLACE = f"{clouds.AZURE_ACCOUNT}.dfs.core.windows.net"
ACCOUNT = {"account": clouds.AZURE_ACCOUNT, "key": clouds.AZURE_KEY}


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Bench]:
    account = {**ACCOUNT, "endpoint": os.environ[clouds.AZURE_ENDPOINT]}
    async with bench(work_directory=str(tmp_path)) as found:
        await found.put_credential("lake", account, kind="azure")
        wrong = base64.b64encode(b"wrong" * 12).decode()
        await found.put_credential("wrong", {**account, "key": wrong}, kind="azure")
        await found.put_credential("half", {**account, "key": wrong[:7]}, kind="azure")
        yield found


@pytest.fixture
def folder() -> str:
    """A folder in a container of its own."""
    name = f"lake{secrets.token_hex(4)}"
    container = ContainerClient(
        os.environ[clouds.AZURE_ENDPOINT],
        name,
        credential={"account_name": clouds.AZURE_ACCOUNT, "account_key": clouds.AZURE_KEY},
    )
    container.create_container()
    return f"abfss://{name}@{PLACE}/daily"


async def write(worker: Bench, folder: str, count: int) -> Any:
    sink = {"path": folder, "auth": "lake", "mode": "append", "partition_by": ["day"]}
    call = call_of(
        "duckdb",
        {
            "query": "SELECT n AS id, n % 2 AS day FROM range(:count) t(n)",
            "params": {"count": count},
            "database": ":memory:",
            "sink": sink,
        },
    )
    return await worker.tools.run(call)


async def read(worker: Bench, path: str, auth: str = "lake") -> Any:
    inputs = {"o": {"path": path, "auth": auth}}
    text = "SELECT count(*) AS n, sum(id)::BIGINT AS total FROM o"
    fields = {"query": text, "database": ":memory:", "inputs": inputs}
    return await worker.tools.run(call_of("duckdb", fields))


async def test_a_dataset_is_committed_and_read_by_pattern(worker: Bench, folder: str) -> None:
    for _ in range(2):
        outcome = await write(worker, folder, 10)
        assert outcome.error is None, outcome.error
    assert (await read(worker, folder)).data["rows"] == [{"n": 20, "total": 90}]
    assert (await read(worker, f"{folder}/day=1/")).data["rows"] == [{"n": 10, "total": 50}]


async def test_wrong_keys_and_lake_tables_are_told(worker: Bench, folder: str) -> None:
    assert (await write(worker, folder, 3)).error is None
    error = (await read(worker, folder, auth="wrong")).error
    assert (error.kind, "refused to credential 'wrong'" in error.message) == ("auth", True)
    error = (await read(worker, folder, auth="half")).error
    assert (error.kind, "is none of Azure's" in error.message) == ("config", True)
    call = call_of(
        "duckdb",
        {
            "query": "SELECT 1 AS id",
            "database": ":memory:",
            "sink": {"delta": folder, "auth": "lake", "mode": "append"},
        },
    )
    error = (await worker.tools.run(call)).error
    assert error is not None
    assert "'delta' is in s3, gs" in error.message
