"""The same stores over every adapter."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest
from tests.support.servers import PostgresServer
from tests.support.storage import Stores, memory_stores, migrated, postgres_stores

_TEMPLATE = "noetl_template"


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> str:
    """The name of a migrated database that others are copied from."""

    async def make() -> None:
        async with migrated(await postgres.create_database(_TEMPLATE)):
            return

    asyncio.run(make())
    return _TEMPLATE


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest) -> PostgresServer | None:
    """The server behind the stores, started only for those that have one."""
    if request.param == "memory":
        return None
    request.getfixturevalue("template")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server


@pytest.fixture
async def stores(server: PostgresServer | None) -> AsyncIterator[Stores]:
    """Empty stores."""
    if server is None:
        yield memory_stores()
        return
    name = f"test_{secrets.token_hex(6)}"
    await server.execute_async(f'create database "{name}" template "{_TEMPLATE}"')
    async with migrated(server.admin_dsn(name)) as database:
        yield postgres_stores(database)
    await server.drop_database(name)
