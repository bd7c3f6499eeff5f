"""A worker without stores of its own, a scripted server, a database and a bucket for its tools."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from obstore.store import S3Store
from tests.support.buckets import open_bucket
from tests.support.scripted import Script, script
from tests.support.servers import S3Server
from tests.support.working import Bench, bench

from noetl_worker.payloads import payload_retry


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench() as opened:
        yield opened


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    async with script() as opened:
        yield opened


@pytest.fixture
async def db(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


@pytest.fixture
def bucket(s3: S3Server) -> S3Store:
    return open_bucket(s3)


@pytest.fixture
def _brief_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a payload store again without waiting for seconds in between."""
    monkeypatch.setattr(payload_retry, "_RETRY_BASE_S", 0.001)
