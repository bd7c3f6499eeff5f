"""JetStream goes away, comes back, and comes back empty."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.polling import PATIENCE_S, eventually
from tests.support.servers import NatsServer, nats_server

from noetl_chassis.clock import SystemClock
from noetl_cli.stack.servers import nats
from noetl_contracts import subjects
from noetl_contracts.commands import worker_pools
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.subjects import Reporter
from noetl_messaging.jetstream.connection import Connection, ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.jetstream.hints import NatsHints
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Message

WAITS = ConnectionTimeouts(connect_s=30.0, request_s=5.0)
ACME, OPS = TenantId("acme"), OrganizationId("ops")
DECLARED = topology.declare_topology(shard_count=2, lease_s=2.0)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    with nats_server(tmp_path) as live:
        yield live


@pytest.fixture
async def connection(server: NatsServer) -> AsyncIterator[Connection]:
    async with open_connection(server.url, name="test", waits=WAITS) as opened:
        yield opened


def streams(connection: Connection) -> JetStreamStreams:
    return JetStreamStreams(connection, DECLARED, now=SystemClock().now)


def a_fact(number: int) -> Message:
    return Message(
        subject=subjects.build_ingest_subject(0, ACME, OPS),
        message_id=f"f/{number}",
        data=b"%d" % number,
    )


def planner(connection: Connection, *, standing: int = 0) -> JetStreamConsumer:
    return JetStreamConsumer(
        connection,
        stream=topology.INGEST,
        name=topology.build_planner_consumer(0),
        standing=standing,
    )


STANDING = pytest.mark.parametrize("standing", [0, 1, 16], ids=lambda number: f"standing-{number}")


async def reconnected(connection: Connection) -> None:
    async def probe() -> bool:
        return connection.check_connection() is None

    await eventually(probe)


async def fetched(consumer: JetStreamConsumer, *, wait_s: float = 0.2) -> list[bytes]:
    try:
        return [item.data for item in await consumer.fetch_batch(messages_max=10, wait_s=wait_s)]
    except MessagingUnavailable:
        return []


async def test_no_server_at_start_is_one_clear_sentence() -> None:
    waits = ConnectionTimeouts(connect_s=0.5)
    with pytest.raises(MessagingUnavailable, match=r"127\.0\.0\.1:1 cannot be used.*NATS_URL"):
        async with open_connection("nats://u:secret@127.0.0.1:1", name="test", waits=waits):
            pass


@pytest.mark.parametrize(
    ("version", "refusal"), [("2.11.9", "is version 2.11: 2.12 or newer"), ("ours", None)]
)
async def test_a_server_that_loses_streams_is_refused(version: str, refusal: str | None) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "s", "version": version, "max_payload": 1024, "headers": True}
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as greeter:
        port = greeter.sockets[0].getsockname()[1]
        opening = open_connection(f"nats://127.0.0.1:{port}", name="test", waits=WAITS)
        if refusal is None:
            async with opening as connection:
                assert connection.check_connection() is None
            return
        with pytest.raises(MessagingUnavailable, match=refusal):
            await opening.__aenter__()


async def test_a_wrong_password_is_refused_without_showing_it(server: NatsServer) -> None:
    with pytest.raises(MessagingUnavailable, match=r"(?i)authorization|password") as refused:
        async with open_connection(
            f"nats://admin:wrong-one@127.0.0.1:{server.port}", name="test", waits=WAITS
        ):
            pass
    assert "wrong-one" not in str(refused.value)


async def test_a_store_without_room_for_the_streams_says_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats, "STORE_BYTES_MAX", "1GB")
    needed = sum(spec.bytes_max for spec in DECLARED.streams) // (1024 * 1024)
    with nats_server(tmp_path) as small:
        async with open_connection(small.url, name="test", waits=WAITS) as opened:
            with pytest.raises(MessagingUnavailable, match=rf"{needed} MiB.*max_file_store"):
                await streams(opened).ensure_streams()


@STANDING
async def test_a_stopped_server_is_unavailable_and_messages_survive_it(
    server: NatsServer, connection: Connection, standing: int
) -> None:
    await streams(connection).ensure_streams()
    publisher, consumer = JetStreamPublisher(connection), planner(connection, standing=standing)
    await publisher.publish_message(a_fact(1))
    assert await fetched(consumer, wait_s=PATIENCE_S) == [b"1"]

    await asyncio.to_thread(server.kill)
    await eventually(lambda: _is_refused(publisher))
    assert await publisher.publish_batch([a_fact(2)]) == [False]
    with pytest.raises(MessagingUnavailable):
        await consumer.fetch_batch(messages_max=1, wait_s=0.1)
    await NatsHints(connection).notify(subjects.build_hint_subject("test"))

    await asyncio.to_thread(server.start)
    await reconnected(connection)
    await publisher.publish_message(a_fact(2))
    found: list[bytes] = []

    async def has_come() -> bool:
        found.extend(await fetched(consumer))
        return b"2" in found

    await eventually(has_come)
    # The first comes again when its lease is over; what was refused may have been on its way.
    assert found.count(b"2") == 1
    assert set(found) <= {b"1", b"2", b"99"}


@STANDING
async def test_a_fetch_that_waits_ends_when_the_server_dies(
    server: NatsServer, connection: Connection, standing: int
) -> None:
    await streams(connection).ensure_streams()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_unavailable(planner(connection, standing=standing)))
        await asyncio.to_thread(server.kill)
    assert waiting.result()


@STANDING
async def test_a_wiped_server_is_filled_again_and_everyone_goes_on(
    server: NatsServer, connection: Connection, standing: int
) -> None:
    await streams(connection).ensure_streams()
    publisher, consumer = JetStreamPublisher(connection), planner(connection, standing=standing)
    await publisher.publish_message(a_fact(1))
    (held,) = await consumer.fetch_batch(messages_max=1, wait_s=PATIENCE_S)

    await asyncio.to_thread(server.wipe)
    await reconnected(connection)
    with pytest.raises(MessagingUnavailable):
        await publisher.publish_message(a_fact(2))
    with pytest.raises(MessagingUnavailable):
        await consumer.fetch_batch(messages_max=1, wait_s=0.5)
    assert await held.extend_ack_wait() is False

    made = await streams(connection).ensure_streams()
    assert topology.INGEST in made
    await publisher.publish_message(a_fact(2))
    assert await held.extend_ack_wait() is False
    # The old delivery's settlement must not hit the first message of the new stream.
    await held.ack()
    (fresh,) = await consumer.fetch_batch(messages_max=1, wait_s=PATIENCE_S)
    assert fresh.data == b"2"
    assert fresh.stream_sequence > held.stream_sequence


async def test_a_restart_leaves_deliveries_with_those_who_hold_them(
    server: NatsServer, connection: Connection
) -> None:
    await streams(connection).ensure_streams()
    await JetStreamPublisher(connection).publish_message(a_fact(1))
    (held,) = await planner(connection).fetch_batch(messages_max=1, wait_s=PATIENCE_S)
    await asyncio.to_thread(server.restart)
    await reconnected(connection)
    assert await eventually(held.extend_ack_wait)
    await held.ack()
    assert await fetched(planner(connection)) == []


async def test_two_appliers_at_once_agree(server: NatsServer, connection: Connection) -> None:
    async with open_connection(server.url, name="other", waits=WAITS) as other:
        await asyncio.gather(streams(connection).ensure_streams(), streams(other).ensure_streams())
        assert await streams(other).list_mismatches() == []


async def test_who_does_not_hear_itself_hears_others_and_what_streams_tell_it(
    server: NatsServer, connection: Connection
) -> None:
    deaf = open_connection(server.url, name="deaf", waits=WAITS, hears_itself=False)
    async with deaf as own, NatsHints(own).watch_hints("a.b") as woken:
        await streams(own).ensure_streams()
        await NatsHints(own).notify("a.b")
        # What is published to a stream comes back to its publisher, after the hint.
        await JetStreamPublisher(own).publish_message(a_fact(1))
        assert await fetched(planner(own), wait_s=PATIENCE_S) == [b"1"]
        assert not woken.is_set()
        await NatsHints(connection).notify("a.b")
        await asyncio.wait_for(woken.wait(), WAITS.connect_s)


async def test_a_changed_declaration_is_applied_in_place(connection: Connection) -> None:
    await streams(connection).ensure_streams()
    publisher = JetStreamPublisher(connection)
    await publisher.publish_message(a_fact(1))
    longer = JetStreamStreams(
        connection, topology.declare_topology(shard_count=2, lease_s=7.0), now=SystemClock().now
    )
    problems = await longer.list_mismatches()
    assert any("ack_wait is 2.0, declared is 7.0" in problem for problem in problems)
    changed = await longer.ensure_streams()
    assert changed == [f"NOETL_COMMANDS/worker-default-{lane}" for lane in worker_pools.LANES]
    assert await longer.list_mismatches() == []
    assert await fetched(planner(connection), wait_s=PATIENCE_S) == [b"1"]


async def test_each_service_may_do_its_part_and_no_other(server: NatsServer) -> None:
    short = ConnectionTimeouts(connect_s=5.0, request_s=0.5)
    async with open_connection(server.url_for("reaper"), name="reaper", waits=WAITS) as reaper:
        await streams(reaper).ensure_streams()
        assert await JetStreamDeadLetters(reaper).collect_given_up(letters_max=1) == []
    async with open_connection(server.url_for("outbox"), name="outbox", waits=short) as outbox:
        await JetStreamPublisher(outbox).publish_message(a_fact(1))
        with pytest.raises(MessagingUnavailable):
            await planner(outbox).fetch_batch(messages_max=1, wait_s=0.1)
    async with open_connection(server.url_for("worker"), name="worker", waits=short) as worker:
        command = Message(
            subject=subjects.build_command_subject("default", "io", ACME, OPS),
            message_id="c",
            data=b"",
        )
        with pytest.raises(MessagingUnavailable):
            await JetStreamPublisher(worker).publish_message(command)
        with pytest.raises(MessagingUnavailable):
            await JetStreamPublisher(worker).publish_message(a_fact(2))
        reporter = Reporter("default", "worker")
        report = Message(
            subject=subjects.build_report_subject(0, ACME, OPS, reporter),
            message_id="r",
            data=b"2",
        )
        await JetStreamPublisher(worker).publish_message(report)
    async with open_connection(server.url_for("planner"), name="planner", waits=short) as owner:
        (first, *_) = await planner(owner).fetch_batch(messages_max=2, wait_s=PATIENCE_S)
        await first.ack()
        await JetStreamDeadLetters(owner).bury_delivery(
            first, stream=topology.INGEST, consumer="planner-0", reason="test"
        )


async def _is_refused(publisher: JetStreamPublisher) -> bool:
    try:
        await publisher.publish_message(a_fact(99))
    except MessagingUnavailable:
        return True
    return False


async def _unavailable(consumer: JetStreamConsumer) -> bool:
    try:
        await consumer.fetch_batch(messages_max=1, wait_s=30)
    except MessagingUnavailable:
        return True
    return False
