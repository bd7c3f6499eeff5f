"""What PostgreSQL refuses for a moment is taken again; what others hold open stalls nobody."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest
from tests.support.servers import PostgresServer
from tests.support.storage import (
    Stores,
    a_fence,
    a_run,
    a_stream,
    an_append,
    an_execution,
    migrated,
    postgres_stores,
)

from noetl_contracts.ledger.records import ShardFence
from noetl_storage.ports.errors import StorageUnavailable
from noetl_storage.postgres.database import Database, open_database


@pytest.fixture
async def ledger(database: str) -> AsyncIterator[Database]:
    async with migrated(database) as opened:
        yield opened


async def _no_room(database: Database) -> None:
    """Be one connection too many for the role."""
    await database.execute_statement("CREATE ROLE crowded LOGIN PASSWORD 'p' CONNECTION LIMIT 0")
    row = await database.find_row("SELECT inet_server_port() AS port, current_database() AS name")
    assert row is not None
    dsn = f"postgresql://crowded:p@127.0.0.1:{row['port']}/{row['name']}"
    try:
        async with open_database(dsn, connect_deadline_s=0.2, must_be_durable=False):
            pytest.fail("there was room")
    finally:
        await database.execute_statement("DROP ROLE crowded")


async def _too_long(database: Database) -> None:
    async with database.open_transaction() as transaction:
        await transaction.execute_statement("SET LOCAL statement_timeout = '20ms'")
        await transaction.execute_statement("SELECT pg_sleep(5)")


async def _overtaken(database: Database) -> None:
    """Be the one of two that changed what the other had read."""
    await database.execute_statement("CREATE TABLE IF NOT EXISTS public.one AS SELECT 1 AS n")
    async with database.open_transaction() as first:
        await first.execute_statement("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await first.fetch_rows("SELECT n FROM public.one")
        await database.execute_statement("UPDATE public.one SET n = n + 1")
        await first.execute_statement("UPDATE public.one SET n = n + 1")


async def _deadlocked(database: Database) -> None:
    await database.execute_statement(
        "CREATE TABLE public.two AS SELECT k, 0 AS n FROM (VALUES (1), (2)) v(k)"
    )
    holding = [asyncio.Event(), asyncio.Event()]

    async def take(mine: int, other: int) -> None:
        async with database.open_transaction() as transaction:
            await transaction.execute_statement(
                "UPDATE public.two SET n = n + 1 WHERE k = $1", mine + 1
            )
            holding[mine].set()
            await holding[other].wait()
            await transaction.execute_statement(
                "UPDATE public.two SET n = n + 1 WHERE k = $1", other + 1
            )

    told = await asyncio.gather(take(0, 1), take(1, 0), return_exceptions=True)
    (failure,) = [item for item in told if item is not None]
    raise failure


@pytest.mark.parametrize("refused", [_no_room, _too_long, _overtaken, _deadlocked])
async def test_a_passing_refusal_has_one_name_and_the_pool_goes_on(
    ledger: Database, refused: Callable[[Database], Awaitable[None]]
) -> None:
    with pytest.raises(StorageUnavailable):
        await refused(ledger)
    assert await ledger.get_value("SELECT 7") == 7


async def test_a_transaction_that_stays_open_elsewhere_stalls_no_message(
    ledger: Database, postgres: PostgresServer
) -> None:
    stores = postgres_stores(ledger)
    fence = await a_fence(stores, lease_s=600)
    elsewhere = await postgres.create_database("elsewhere")
    other = await asyncpg.connect(elsewhere)
    try:
        async with other.transaction():
            await other.execute("CREATE TABLE held (n int)")
            await other.fetchval("SELECT pg_current_xact_id()")
            assert await _all_messages(stores, fence) == 3
    finally:
        await other.close()
        await postgres.drop_database("elsewhere")


async def _all_messages(stores: Stores, fence: ShardFence) -> int:
    for _ in range(3):
        execution = an_execution()
        await stores.ledger.append(an_append(fence, a_stream(execution, [a_run()]), messages=1))
    return len(await stores.outbox.claim_rows(owner="o", lease_s=5, rows_max=10))
