"""Messages that come singly cost no request each, and none is kept by somebody who has left."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from nats.aio.msg import Msg
from tests.support.bus import remove_streams, wait_for_pending
from tests.support.servers import NatsServer, nats_server

from noetl_chassis.clock import SystemClock
from noetl_contracts import subjects
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_messaging.jetstream.connection import Connection, ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Message

STANDING = 16
# So long that a test would be over its time if it waited for it.
LEASE_S = 300.0
NAME = topology.build_planner_consumer(0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as live:
        yield live


@pytest.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    async with open_connection(
        server.url, name="test", waits=ConnectionTimeouts(connect_s=10)
    ) as opened:
        await remove_streams(opened, server)
        declared = topology.declare_topology(shard_count=1, lease_s=LEASE_S)
        await JetStreamStreams(opened, declared, now=SystemClock().now).ensure_streams()
        yield opened


async def publish(connection: Connection, *numbers: int) -> None:
    for number in numbers:
        subject = subjects.build_ingest_subject(0, TenantId("acme"), OrganizationId("ops"))
        message = Message(subject=subject, message_id=f"f/{number}", data=b"%d" % number)
        await JetStreamPublisher(connection).publish_message(message)


async def fetched(consumer: JetStreamConsumer, *, wait_s: float = 60.0) -> list[bytes]:
    found = await consumer.fetch_batch(messages_max=100, wait_s=wait_s)
    for item in found:
        await item.ack()
    return [item.data for item in found]


def a_reader(
    connection: Connection, *, standing: int, is_shared: bool = False
) -> JetStreamConsumer:
    return JetStreamConsumer(
        connection, stream=topology.INGEST, name=NAME, standing=standing, is_shared=is_shared
    )


async def requests(connection: Connection, consumer: JetStreamConsumer, messages: int) -> int:
    """Let messages come singly; return how often the server was asked for them."""
    asked: list[Msg] = []

    async def note(message: Msg) -> None:
        asked.append(message)

    await connection.client.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.*.{NAME}", cb=note)
    for number in range(messages):
        waiting = asyncio.create_task(fetched(consumer))
        await publish(connection, number)
        assert await waiting == [b"%d" % number]
    await connection.client.flush()
    return len(asked)


@pytest.mark.parametrize(("standing", "most"), [(1, 34), (STANDING, 4)])
async def test_messages_that_come_singly_share_a_request(
    connection: Connection, standing: int, most: int
) -> None:
    assert await requests(connection, a_reader(connection, standing=standing), 32) <= most


async def test_what_queues_up_is_taken_at_once(connection: Connection) -> None:
    reader = a_reader(connection, standing=STANDING)
    assert await requests(connection, reader, 1) == 1
    await publish(connection, *range(1, 61))
    await wait_for_pending(reader, 60, 0)
    found: list[bytes] = []
    sizes: list[int] = []
    while len(found) < 60:
        came = await fetched(reader)
        sizes.append(len(came))
        found += came
    assert found == [b"%d" % number for number in range(1, 61)]
    # What stands brings its part, then the queue is asked for what it has.
    assert max(sizes) >= 60 - STANDING


async def test_a_short_wait_is_short_although_a_request_stands(connection: Connection) -> None:
    reader = a_reader(connection, standing=STANDING)
    assert await requests(connection, reader, 2) == 2
    async with asyncio.timeout(60):
        assert await fetched(reader, wait_s=0.01) == []
    await publish(connection, 7)
    assert await fetched(reader) == [b"7"]


async def test_who_is_called_back_leaves_at_once_and_loses_nothing(connection: Connection) -> None:
    reader = a_reader(connection, standing=STANDING)
    assert await requests(connection, reader, 2) == 2
    async with asyncio.timeout(60):
        fetching = asyncio.create_task(reader.fetch_batch(messages_max=1, wait_s=60.0))
        await asyncio.sleep(0)
        reader.wake_fetch()
        assert await fetching == []
        # Called before it waits, it does not begin to.
        reader.wake_fetch()
        assert await reader.fetch_batch(messages_max=1, wait_s=60.0) == []
    await publish(connection, 7)
    assert await fetched(reader) == [b"7"]


async def test_what_waited_for_its_fetch_is_as_old_as_its_request(connection: Connection) -> None:
    reader, clock = a_reader(connection, standing=STANDING), asyncio.get_running_loop().time
    assert await requests(connection, reader, 2) == 2
    asked_before = clock()
    await publish(connection, 7)
    (found,) = await reader.fetch_batch(messages_max=1, wait_s=60.0)
    assert found.age_s >= clock() - asked_before
    await found.ack()


async def test_who_leaves_gives_back_what_came_and_was_not_fetched(connection: Connection) -> None:
    reader = a_reader(connection, standing=STANDING)
    assert await requests(connection, reader, 2) == 2
    await publish(connection, 7, 8)
    # Handed over under the request that stands; the server counts it as delivered.
    await wait_for_pending(reader, 0, 2)
    await reader.close()
    successor = a_reader(connection, standing=0)
    async with asyncio.timeout(60):
        found = await fetched(successor)
        while len(found) < 2:
            found += await fetched(successor)
    assert sorted(found) == [b"7", b"8"]
    await publish(connection, 9)
    assert await fetched(successor) == [b"9"]


async def test_with_one_nothing_is_on_its_way_while_nobody_fetches(connection: Connection) -> None:
    reader = a_reader(connection, standing=1)
    await requests(connection, reader, 3)
    assert await fetched(reader, wait_s=0.05) == []
    await publish(connection, 7)
    await wait_for_pending(reader, 1, 0)
    assert await fetched(reader) == [b"7"]


async def test_who_gives_up_waiting_gives_back_what_came(connection: Connection) -> None:
    reader = a_reader(connection, standing=STANDING)
    assert await requests(connection, reader, 2) == 2
    waiting = asyncio.create_task(fetched(reader))
    await connection.client.flush()
    waiting.cancel()
    await asyncio.wait([waiting])
    await publish(connection, 7)
    assert await fetched(a_reader(connection, standing=0)) == [b"7"]


async def test_who_leaves_a_server_that_is_away_leaves_all_the_same(
    server: NatsServer, connection: Connection
) -> None:
    reader = a_reader(connection, standing=STANDING)
    assert await requests(connection, reader, 2) == 2
    await publish(connection, 7)
    await asyncio.to_thread(server.kill)
    try:
        await reader.close()
    finally:
        await asyncio.to_thread(server.start)


async def test_who_shares_takes_half_of_what_is_left(connection: Connection) -> None:
    reader = a_reader(connection, standing=1, is_shared=True)
    assert await requests(connection, reader, 2) == 2
    await publish(connection, *range(2, 10))
    await wait_for_pending(reader, 8, 0)
    assert [len(await fetched(reader)) for _ in range(4)] == [1, 4, 2, 1]


async def fetch_for_ever(reader: JetStreamConsumer) -> None:
    async with asyncio.timeout(60):
        while True:
            await fetched(reader, wait_s=0.3)


async def test_a_standing_request_that_was_lost_is_noticed(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = a_reader(connection, standing=STANDING)
    assert await fetched(reader, wait_s=0.05) == []
    publish_all, lost = connection.client.publish, list[str]()

    async def lose_one(subject: str, *about: Any, **more: Any) -> None:
        if "MSG.NEXT" in subject and not lost:
            lost.append(subject)
        else:
            await publish_all(subject, *about, **more)

    monkeypatch.setattr(connection.client, "publish", lose_one)
    with pytest.raises(MessagingUnavailable, match="did not answer"):
        await fetch_for_ever(reader)
    await publish(connection, 7)
    assert await fetched(reader) == [b"7"]
    assert len(lost) == 1
