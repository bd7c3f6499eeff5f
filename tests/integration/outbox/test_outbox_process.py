"""The outbox as a process, with its own role and user, and servers that fail."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec import Struct
from tests.support.polling import eventually
from tests.support.servers import NatsServer, PostgresServer, nats_server, postgres_server
from tests.support.services import Service, service
from tests.support.storage import a_request, migrated

from noetl_chassis.clock import SystemClock
from noetl_messaging.jetstream.connection import Connection, open_connection
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.streams import topology
from noetl_storage.postgres.ledger.outbox import PostgresOutbox
from noetl_storage.postgres.ledger.requests import PostgresRequests

SHARDS = 1


class World(Struct):
    """A migrated database, a server of its own, and the environment of an outbox."""

    requests: PostgresRequests
    outbox: PostgresOutbox
    nats: NatsServer
    environ: dict[str, str]
    log: Path

    async def submit(self, count: int) -> None:
        for _ in range(count):
            await self.requests.submit_request(a_request())

    async def is_empty(self) -> bool:
        return (await self.outbox.count_backlog())[0] == 0


@pytest.fixture(scope="module")
def durable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server as services demand it: with fsync on."""
    with postgres_server(tmp_path_factory.mktemp("durable"), is_durable=True) as server:
        yield server


@pytest.fixture
async def world(durable: PostgresServer, tmp_path: Path) -> AsyncIterator[World]:
    name = f"test_{secrets.token_hex(6)}"
    database = await durable.create_database(name)
    async with migrated(database) as opened:
        await durable.execute_async("alter role noetl_outbox login password 'pw'")
        dsn = durable.dsn(user="noetl_outbox", password="pw", database=name)  # noqa: S106 - made for this test
        with nats_server(tmp_path) as server:
            yield World(
                requests=PostgresRequests(opened),
                outbox=PostgresOutbox(opened),
                nats=server,
                environ={"POSTGRES_DSN": dsn, "NATS_URL": server.url_for("outbox")},
                log=tmp_path / "outbox.log",
            )


async def prepare(connection: Connection) -> JetStreamStreams:
    declared = topology.declare_topology(shard_count=4)
    streams = JetStreamStreams(connection, declared, now=SystemClock().now)
    await streams.ensure_streams()
    return streams


async def stored(connection: Connection) -> int:
    info = await connection.jetstream.stream_info(topology.INGEST)
    return info.state.messages


async def ready(process: Service) -> None:
    await asyncio.to_thread(process.wait_ready)


async def test_two_outboxes_publish_everything_once_and_stop_when_asked(world: World) -> None:
    async with open_connection(world.nats.url, name="test") as admin:
        await prepare(admin)
        await world.submit(100)
        with (
            service("outbox", world.environ, log=world.log) as one,
            service("outbox", world.environ, log=world.log) as two,
        ):
            await ready(one)
            await ready(two)
            await world.submit(100)
            assert await eventually(world.is_empty)
            assert await stored(admin) == 200
            status, metrics = await asyncio.to_thread(one.get, "/metrics")
            assert (status, "noetl_outbox_rows" in metrics) == (200, True)
            assert [await asyncio.to_thread(item.stop) for item in (one, two)] == [0, 0]


async def test_a_killed_outbox_leaves_nothing_behind_that_another_does_not_publish(
    world: World,
) -> None:
    async with open_connection(world.nats.url, name="test") as admin:
        await prepare(admin)
        environ = {**world.environ, "CLAIM_LEASE_S": "1"}
        with service("outbox", environ, log=world.log) as doomed:
            await ready(doomed)
            await world.submit(50)
            doomed.kill()
        await world.outbox.claim_rows(owner="dead", lease_s=0.5, rows_max=10)
        await world.submit(50)
        with service("outbox", environ, log=world.log):
            assert await eventually(world.is_empty)
        assert await stored(admin) == 100


async def test_rows_wait_while_the_streams_are_gone_and_go_out_when_they_are_back(
    world: World,
) -> None:
    with service("outbox", world.environ, log=world.log) as outbox:
        async with open_connection(world.nats.url, name="test") as admin:
            await prepare(admin)
            await ready(outbox)
            await world.submit(5)
            assert await eventually(world.is_empty)

        await asyncio.to_thread(world.nats.wipe)
        await world.submit(5)
        async with open_connection(world.nats.url, name="test") as admin:
            await prepare(admin)
            assert await eventually(world.is_empty)
            assert await stored(admin) == 5

        await asyncio.to_thread(world.nats.stop)
        await world.submit(5)
        await asyncio.to_thread(world.nats.start)
        assert await eventually(world.is_empty)
        assert await asyncio.to_thread(outbox.stop) == 0


async def test_without_its_servers_an_outbox_says_so_and_ends(world: World) -> None:
    for field, url, said in (
        ("POSTGRES_DSN", "postgres://u:hunter2@127.0.0.1:1/d", "no PostgreSQL at 127.0.0.1:1"),
        ("NATS_URL", "nats://u:hunter2@127.0.0.1:1", "NATS at 127.0.0.1:1 cannot be used"),
    ):
        environ = {**world.environ, field: url, "CONNECT_S": "0.5"}
        log = world.log.with_suffix(f".{field}")
        with service("outbox", environ, log=log) as outbox:
            assert await asyncio.to_thread(outbox.process.wait, 60) == 1
        last = log.read_text().splitlines()[-1]
        assert last.startswith("error: ")
        assert said in last
        assert "hunter2" not in log.read_text()
        assert "Traceback" not in log.read_text()
