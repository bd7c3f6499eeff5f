"""Who is connected to a real broker, and what its consumers hold."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.bus import remove_streams
from tests.support.polling import PATIENCE_S, eventually
from tests.support.servers import NatsServer, nats_server

from noetl_chassis.clock import SystemClock
from noetl_contracts import subjects
from noetl_contracts.commands.command_work import IO_LANE
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_messaging.jetstream.broker_settings import JetStreamSettings
from noetl_messaging.jetstream.connection import Connection, ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.open_connections import NatsConnections
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.jetstream.unsettled_messages import JetStreamUnsettledMessages
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Delivery, Message

WAITS = ConnectionTimeouts(connect_s=10)
DECLARED = topology.declare_topology(shard_count=1, pools=("default", "gpu"), lease_s=300.0)
PROGRAM = """\
import asyncio, sys
from noetl_messaging.jetstream.connection import open_connection

async def stay():
    async with open_connection(sys.argv[1], name="worker-7"):
        await asyncio.sleep(300)

asyncio.run(stay())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as live:
        yield live


@pytest.fixture
async def reaper(server: NatsServer) -> AsyncIterator[Connection]:
    async with open_connection(server.url, name="admin", waits=WAITS) as admin:
        await remove_streams(admin, server)
        streams = JetStreamStreams(admin, DECLARED, now=SystemClock().now)
        await streams.ensure_streams()
    async with open_connection(server.url_for("reaper"), name="reaper-1", waits=WAITS) as opened:
        yield opened


async def publish(server: NatsServer, *names: str, pool: str = "default") -> None:
    async with open_connection(server.url, name="test", waits=WAITS) as connection:
        for name in names:
            subject = subjects.build_command_subject(
                pool, IO_LANE, TenantId("acme"), OrganizationId("ops")
            )
            message = Message(subject=subject, message_id=name, data=name.encode())
            await JetStreamPublisher(connection).publish_message(message)


async def test_a_killed_program_is_connected_no_more(
    server: NatsServer, reaper: Connection
) -> None:
    connections = NatsConnections(reaper)
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, server.url_for("worker"))
    )

    async def is_connected() -> bool:
        return "worker-7" in (await connections.list_connections()).names

    async def is_gone() -> bool:
        return not await is_connected()

    try:
        await eventually(is_connected)
        first = await connections.list_connections()
        assert {"worker-7", "reaper-1"} <= first.names
        assert len(first.servers) == 1
    finally:
        program.kill()
        await program.wait()
    await eventually(is_gone)
    assert (await connections.list_connections()).servers == first.servers


async def test_more_connections_than_fit_an_answer_are_all_told(
    server: NatsServer, reaper: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noetl_messaging.jetstream.open_connections._PAGE", 2)
    async with (
        open_connection(server.url, name="one", waits=WAITS),
        open_connection(server.url, name="two", waits=WAITS),
        open_connection(server.url, name="three", waits=WAITS),
    ):
        report = await NatsConnections(reaper).list_connections()
    assert {"one", "two", "three", "reaper-1"} <= report.names


async def test_what_is_handed_over_and_not_settled_is_listed(
    server: NatsServer, reaper: Connection
) -> None:
    await publish(server, "a", "b", "c", "d")
    await publish(server, "g", pool="gpu")
    async with open_connection(server.url_for("worker"), name="worker-1", waits=WAITS) as worker:
        name = topology.build_worker_consumer("default", IO_LANE)
        consumer = JetStreamConsumer(worker, stream=topology.COMMANDS, name=name)
        taken = list[Delivery]()
        while len(taken) < 3:
            taken += await consumer.fetch_batch(messages_max=3 - len(taken), wait_s=PATIENCE_S)
        assert [delivery.data for delivery in taken] == [b"a", b"b", b"c"]
        await taken[1].ack()
        messages = JetStreamUnsettledMessages(
            reaper, stream=topology.COMMANDS, consumers=DECLARED.consumers
        )

        async def list_held() -> list[tuple[int, bytes]]:
            return [(one.sequence, one.data) async for one in messages.iterate_unsettled()]

        async def is_settled() -> bool:
            return len(await list_held()) == 2

        await eventually(is_settled)
        held = [(one.stream_sequence, one.data) for one in (taken[0], taken[2])]
        assert await list_held() == held
        await consumer.close()


@pytest.mark.parametrize("has_monitor", [True, False])
async def test_a_broker_tells_how_it_stores(
    server: NatsServer, reaper: Connection, *, has_monitor: bool
) -> None:
    monitor_url = server.url_for("monitor") if has_monitor else ""
    async with open_connection(server.url_for("planner"), name="planner", waits=WAITS) as planner:
        reader = JetStreamSettings(planner, monitor_url)
        settings = await reader.read_settings()
    assert settings.sync_interval_s == (1.0 if has_monitor else None)
    assert set(settings.storage_by_stream) == {stream.name for stream in topology.STREAMS}
    assert set(settings.storage_by_stream.values()) == {"file"}


async def test_who_may_not_ask_a_server_is_told_so(server: NatsServer, reaper: Connection) -> None:
    async with open_connection(server.url_for("planner"), name="planner", waits=WAITS) as planner:
        reader = JetStreamSettings(planner, server.url_for("admin"))
        with pytest.raises(MessagingUnavailable, match="system account"):
            await reader.read_settings()
