"""The same stores over every adapter."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.servers import PostgresServer
from tests.support.storage import Stores, emptied, memory_stores, migrated, postgres_stores


@pytest.fixture(scope="session")
def schema(postgres: PostgresServer) -> str:
    """The DSN of a migrated database that tests use one after the other."""

    async def make() -> str:
        dsn = await postgres.create_database("conformance")
        async with migrated(dsn):
            return dsn

    return asyncio.run(make())


@pytest.fixture(params=["memory", "postgres"])
def dsn(request: pytest.FixtureRequest) -> str | None:
    """Where the stores are kept; the server starts only for those that need one."""
    if request.param == "memory":
        return None
    schema: str = request.getfixturevalue("schema")
    return schema


@pytest.fixture
async def stores(dsn: str | None) -> AsyncIterator[Stores]:
    """Empty stores."""
    if dsn is None:
        yield memory_stores()
        return
    async with emptied(dsn) as database:
        yield postgres_stores(database)
