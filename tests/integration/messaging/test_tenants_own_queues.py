"""A tenant with a share of its own has its own queues at the server, beside those of the others."""

from pathlib import Path

from tests.support.bus import wait_for_pending
from tests.support.polling import PATIENCE_S
from tests.support.servers import nats_server

from noetl_chassis.clock import SystemClock
from noetl_contracts import subjects
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_messaging.jetstream.connection import Connection, ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Message

WAITS = ConnectionTimeouts(connect_s=30.0, request_s=10.0)


async def keep(connection: Connection, *tenants: str) -> list[str]:
    declared = topology.declare_topology(shard_count=1, tenants=tenants)
    streams = JetStreamStreams(connection, declared, now=SystemClock().now)
    changed = await streams.ensure_streams()
    assert await streams.list_mismatches() == []
    return changed


async def taken(connection: Connection, tenant_id: str | None, *, count: int) -> list[bytes]:
    name = topology.build_worker_consumer("default", "io", tenant_id)
    consumer = JetStreamConsumer(connection, stream=topology.COMMANDS, name=name)
    await wait_for_pending(consumer, count, 0)
    deliveries = await consumer.fetch_batch(messages_max=8, wait_s=PATIENCE_S)
    for delivery in deliveries:
        await delivery.ack()
    await consumer.close()
    return [delivery.data for delivery in deliveries]


async def test_a_tenant_is_given_its_own_queues_while_others_go_on(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        async with open_connection(server.url, name="test", waits=WAITS) as connection:
            await keep(connection)
            publisher = JetStreamPublisher(connection)
            for number, (tenant_id, is_own) in enumerate(
                [("acme", False), ("umbrella", False), ("acme", True)]
            ):
                subject = subjects.build_command_subject(
                    "default", "io", TenantId(tenant_id), OrganizationId("o"), is_own=is_own
                )
                message = Message(subject=subject, message_id=str(number), data=b"%d" % number)
                await publisher.publish_message(message)
            # What came before its queue was made waits for it.
            changed = await keep(connection, "acme")
            assert f"{topology.COMMANDS}/worker-default-io" not in changed
            assert await taken(connection, "acme", count=1) == [b"2"]
            assert await taken(connection, None, count=2) == [b"0", b"1"]
