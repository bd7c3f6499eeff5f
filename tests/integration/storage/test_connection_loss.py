import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from tests.support.servers import postgres_server
from tests.support.storage import (
    a_fence,
    a_run,
    a_stream,
    an_append,
    an_execution,
    eventually,
    migrated,
    postgres_stores,
)

from noetl_storage.ports.errors import RowRefused, StorageUnavailable
from noetl_storage.postgres.database import Database, open_database


async def test_a_restarted_server_is_reached_again_and_has_kept_everything(
    tmp_path: Path,
) -> None:
    with postgres_server(tmp_path) as server:
        dsn = await server.create_database("kept")
        async with migrated(dsn) as database:
            stores = postgres_stores(database)
            fence = await a_fence(stores, lease_s=600)
            execution = an_execution()
            await stores.ledger.append(an_append(fence, a_stream(execution, [a_run()])))

            await asyncio.to_thread(server.kill)
            for call in (
                stores.ledger.append(an_append(fence, a_stream(execution, [a_run()], after=1))),
                stores.ledger_reader.read_events(execution),
                stores.outbox.claim_rows(owner="o", lease_s=5, rows_max=1),
                stores.projections.list_positions([execution]),
                stores.projections.clear_execution(execution),
            ):
                with pytest.raises(StorageUnavailable):
                    await call
            await asyncio.to_thread(server.start)
            await eventually(lambda: answers(database), what="the pool connects again")
            await stores.ledger.append(an_append(fence, a_stream(execution, [a_run()], after=1)))
            assert len(await stores.ledger_reader.read_events(execution)) == 2


async def test_a_server_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    with postgres_server(tmp_path) as server:
        await asyncio.to_thread(server.stop)

        async def connect() -> int:
            async with open_database(
                server.admin_dsn(), must_be_durable=False, connect_deadline_s=30
            ) as database:
                answer: int = await database.get_value("select 7")
                return answer

        waiting = asyncio.ensure_future(connect())
        await asyncio.to_thread(server.start)
        assert await waiting == 7


async def test_a_server_that_never_comes_is_named_without_its_password() -> None:
    dsn = "postgresql://someone:secret-word@127.0.0.1:9/ledger"
    with pytest.raises(StorageUnavailable, match=r"127\.0\.0\.1:9/ledger") as caught:
        async with open_database(dsn, connect_deadline_s=0.3):
            pytest.fail("opened")
    assert "secret-word" not in str(caught.value)


async def test_a_hanging_server_is_given_up(tmp_path: Path) -> None:
    with postgres_server(tmp_path) as server:
        async with open_database(
            server.admin_dsn(), must_be_durable=False, connections_max=1, statement_timeout_s=2.0
        ) as database:
            backend = await database.get_value("select pg_backend_pid()")
            os.kill(backend, signal.SIGSTOP)
            try:
                with pytest.raises(StorageUnavailable):
                    await database.ping_server()
            finally:
                os.kill(backend, signal.SIGCONT)
            await eventually(lambda: answers(database), what="another connection is made")


async def test_connections_at_hand_are_there_for_whoever_waits(tmp_path: Path) -> None:
    with postgres_server(tmp_path) as server:
        opening = open_database(server.admin_dsn(), must_be_durable=False, connections_max=2)
        async with opening as database:
            values = [database.get_value("select pg_sleep(0.001) is null") for _ in range(40)]
            assert not any(await asyncio.gather(*values))
            async with (
                database.hold_lock("one") as is_first,
                database.hold_lock("one") as is_second,
            ):
                assert (is_first, is_second) == (True, False)
            async with (
                database.open_transaction() as transaction,
                database.open_transaction() as other,
            ):
                assert await transaction.fetch_rows("select 1") == await other.fetch_rows(
                    "select 1"
                )
            with pytest.raises(RowRefused):
                await database.execute_statement("select 1/0")
            backend = await database.get_value("select pg_backend_pid()")
            with contextlib.suppress(StorageUnavailable):
                await database.execute_statement("select pg_terminate_backend($1)", backend)
            await eventually(lambda: answers(database), what="what has died is not used again")
            values = [database.get_value("select 7") for _ in range(8)]
            assert set(await asyncio.gather(*values)) == {7}


async def answers(database: Database) -> bool:
    try:
        await database.ping_server()
    except StorageUnavailable:
        return False
    return True
