import asyncio
from pathlib import Path

import asyncpg
import pytest
from nats.aio.client import Client
from tests.support.servers import (
    NatsServer,
    PostgresServer,
    S3Server,
    nats_server,
    postgres_server,
)

from noetl_cli.stack.processes import probes


async def connect_nats(url: str) -> Client:
    client = Client()
    await client.connect(url, allow_reconnect=False)
    return client


async def show(dsn: str, name: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        return str(await connection.fetchval(f"show {name}"))
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data_checksums", "on"),
        ("full_page_writes", "on"),
        ("synchronous_commit", "on"),
        ("password_encryption", "scram-sha-256"),
    ],
)
async def test_the_database_server_keeps_its_promises(
    postgres: PostgresServer, name: str, value: str
) -> None:
    assert await show(postgres.admin_dsn(), name) == value


async def test_a_wrong_password_is_refused(postgres: PostgresServer) -> None:
    wrong = postgres.dsn(user="postgres", password="-", database="postgres")  # noqa: S106 - wrong on purpose
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(wrong)


async def test_every_test_gets_an_empty_database(database: str) -> None:
    connection = await asyncpg.connect(database)
    found = await connection.fetchval("select count(*) from pg_class where relname = 'marker'")
    await connection.close()
    assert found == 0


async def test_rows_outlive_a_killed_server_and_its_stale_pid_file(tmp_path: Path) -> None:
    with postgres_server(tmp_path, is_durable=True) as server:
        await server.execute_async("create table kept as select 7 as n")
        await asyncio.to_thread(server.kill)
        pid_file = server.cluster.data_folder / "postmaster.pid"
        assert pid_file.is_file()
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join(["1", *lines[1:]]))
        await asyncio.to_thread(server.start)
        assert await show(server.admin_dsn(), "fsync") == "on"
        connection = await asyncpg.connect(server.admin_dsn())
        assert await connection.fetchval("select n from kept") == 7
        await connection.close()


async def test_a_wiped_broker_has_no_streams(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        client = await connect_nats(server.url)
        await client.jetstream().add_stream(name="KEPT", subjects=["kept.>"])
        await client.jetstream().publish("kept.one", b"x")
        await client.close()

        await asyncio.to_thread(server.restart, hard=True)
        client = await connect_nats(server.url)
        info = await client.jetstream().stream_info("KEPT")
        assert info.state.messages == 1
        await client.close()

        await asyncio.to_thread(server.wipe)
        client = await connect_nats(server.url)
        assert (await client.jetstream().account_info()).streams == 0
        await client.close()


async def test_a_worker_may_not_publish_events(nats: NatsServer) -> None:
    refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def on_error(error: Exception) -> None:
        if not refused.done():
            refused.set_result(str(error))

    client = Client()
    await client.connect(nats.url_for("worker"), error_cb=on_error)
    await client.publish("noetl.events.default.1", b"{}")
    async with asyncio.timeout(60):
        assert "permissions violation" in (await refused).lower()
    await client.close()


async def test_nobody_enters_the_broker_without_a_password(nats: NatsServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", nats.port)
    try:
        async with asyncio.timeout(60):
            writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
            answer = await reader.readuntil(b"Violation'\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
    assert b"-ERR 'Authorization Violation'" in answer


def test_the_object_store_takes_an_object(s3: S3Server) -> None:
    assert probes.is_answering(s3.spec.probe)
