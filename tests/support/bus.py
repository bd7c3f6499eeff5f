"""One bus over the broker in the process, or over JetStream."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from msgspec import Struct
from tests.support.files import walk_folder
from tests.support.manual_clock import ManualClock
from tests.support.polling import eventually
from tests.support.servers import NatsServer

from noetl_chassis.clock import SystemClock
from noetl_messaging.jetstream.connection import Connection, ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.jetstream.hints import NatsHints
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_messaging.jetstream.streams import JetStreamBacklogs, JetStreamStreams
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.memory.consumer import MemoryBacklogs, MemoryConsumer
from noetl_messaging.memory.dead_letters import MemoryDeadLetters
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Backlogs, Consumer, DeadLetters, Hints, Publisher, Streams

LEASE_S = 1.0


class Bus(Struct):
    """Every port over one broker; `elapse` moves the time of a broker that has its own clock."""

    publisher: Publisher
    streams: Streams
    letters: DeadLetters
    hints: Hints
    backlogs: Backlogs
    consumer: Callable[[str, str], Consumer]
    elapse: Callable[[float], None]


def declared() -> topology.Topology:
    """The topology with a short lease, and three deliveries for commands."""
    full = topology.declare_topology(shard_count=2, lease_s=LEASE_S)
    return topology.Topology(
        streams=full.streams,
        consumers=tuple(
            topology.ConsumerSpec(
                stream=spec.stream,
                name=spec.name,
                filters=spec.filters,
                ack_wait_s=LEASE_S,
                deliveries_max=3,
            )
            for spec in full.consumers
        ),
    )


@asynccontextmanager
async def memory_bus() -> AsyncIterator[Bus]:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    broker = MemoryBroker(declared(), clock)
    yield Bus(
        publisher=broker,
        streams=broker,
        letters=MemoryDeadLetters(broker),
        hints=broker,
        backlogs=MemoryBacklogs(broker),
        consumer=lambda stream, name: MemoryConsumer(broker, stream=stream, name=name),
        elapse=clock.advance_by,
    )


@asynccontextmanager
async def jetstream_bus(server: NatsServer, *, standing: int = 0) -> AsyncIterator[Bus]:
    async with open_connection(
        server.url, name="test", waits=ConnectionTimeouts(connect_s=10)
    ) as connection:
        await remove_streams(connection, server)
        yield Bus(
            publisher=JetStreamPublisher(connection),
            streams=JetStreamStreams(connection, declared(), now=SystemClock().now),
            letters=JetStreamDeadLetters(connection),
            hints=NatsHints(connection),
            backlogs=JetStreamBacklogs(connection),
            consumer=lambda stream, name: JetStreamConsumer(
                connection, stream=stream, name=name, standing=standing
            ),
            elapse=lambda _seconds: None,
        )


async def wait_for_pending(consumer: Consumer, undelivered: int, unsettled: int) -> None:
    """Wait until a consumer counts so many messages.

    A server confirms a message before its consumers count it, and does not confirm a settlement.
    """

    async def is_counted() -> bool:
        return await consumer.count_pending() == (undelivered, unsettled)

    await eventually(is_counted)


async def remove_streams(connection: Connection, server: NatsServer) -> None:
    """Remove every stream with its files: a stream that was there before must find no rests."""
    for info in await connection.jetstream.streams_info():
        assert info.config.name is not None
        await connection.jetstream.delete_stream(info.config.name)

    async def are_files_gone() -> bool:
        # The server moves them to a name with a dot first, and removes them in its own time.
        places = walk_folder(server.server.store_folder)
        return not any(path.match("streams/.*") for path in places)

    await eventually(are_files_gone)
