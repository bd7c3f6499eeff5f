"""What a worker's credentials open at the broker: its own queues and its own reports, no more."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from nats.aio.client import Client
from tests.support.polling import eventually
from tests.support.servers import NatsServer, nats_server

from noetl_contracts import subjects
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.subjects import Reporter
from noetl_messaging.jetstream.connection import open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.dead_letters import (
    CONSUMER_HEADER,
    STREAM_HEADER,
    SUBJECT_HEADER,
    JetStreamDeadLetters,
)
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_messaging.jetstream.streams import JetStreamBacklogs, JetStreamStreams
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Message
from noetl_messaging.streams.worker_permissions import WorkerUser

ANN, BOB = WorkerUser(name="ann", tenants=("acme",)), WorkerUser(name="bob")
CARL = WorkerUser(name="carl", pool="gpu")
# Of one tenant alone each.
DORA = WorkerUser(name="dora", tenants=("acme",), only_tenants=True)
EVE = WorkerUser(name="eve", tenants=("globex",), only_tenants=True)
OPS = OrganizationId("ops")
OWN = {
    tenant: topology.build_worker_consumer("default", "io", tenant) for tenant in ("acme", "globex")
}

NOBODYS_TO_PUBLISH = (
    # Facts where services publish, and in the name of others, of another pool, of another place.
    "noetl.ingest.0.acme.ops",
    "noetl.ingest.0.acme.ops.worker.default.bob",
    "noetl.ingest.0.acme.ops.worker.gpu.ann",
    "noetl.ingest.0.acme.ops.worker.default.ann.more",
    "noetl.ingest.0.acme.ops.service",
    # What services alone say.
    *("noetl.events.0.acme.ops", "noetl.commands.default.io.acme.ops", "noetl.triggers.acme.ops.t"),
    *(
        "noetl.offers.to.bob.0",
        "noetl.offers.granted.1.1",
        "noetl.poke.stop.1",
        "noetl.poke.pause.1",
    ),
    *(
        "noetl.poke.halted.1",
        "noetl.poke.taken.1.2",
        "noetl.poke.store-waits",
        "noetl.poke.grown-1",
    ),
    *("noetl.poke.stop-1", "noetl.poke.workers", "noetl.poke.workers.default.bob"),
    "noetl.poke.workers.gpu.ann",
    # Dead letters of other consumers: sent again they would be facts, or another pool's commands.
    *("noetl.dlq.NOETL_INGEST.planner-0", "noetl.dlq.NOETL_COMMANDS.worker-gpu-io"),
    # Streams and consumers: make, change, empty, remove, read.
    *(f"$JS.API.STREAM.{verb}.NOETL_COMMANDS" for verb in ("CREATE", "UPDATE", "DELETE", "PURGE")),
    *(
        f"$JS.API.STREAM.{verb}.NOETL_INGEST"
        for verb in ("PURGE", "SNAPSHOT", "MSG.DELETE", "INFO")
    ),
    *(f"$JS.API.STREAM.MSG.GET.{item}" for item in ("NOETL_COMMANDS", "NOETL_INGEST", "NOETL_DLQ")),
    *(f"$JS.API.DIRECT.GET.{item}" for item in ("NOETL_COMMANDS", "NOETL_INGEST", "NOETL_EVENTS")),
    *("$JS.API.DIRECT.GET.NOETL_DLQ.noetl.dlq.x", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST"),
    *("$JS.API.CONSUMER.CREATE.NOETL_COMMANDS", "$JS.API.CONSUMER.CREATE.NOETL_COMMANDS.mine.a.b"),
    *(
        "$JS.API.CONSUMER.DURABLE.CREATE.NOETL_COMMANDS.mine",
        "$JS.API.CONSUMER.NAMES.NOETL_COMMANDS",
    ),
    *(f"$JS.API.CONSUMER.{verb}.NOETL_COMMANDS.worker-default-io" for verb in ("DELETE", "PAUSE")),
    "$JS.API.CONSUMER.MSG.NEXT.NOETL_COMMANDS.worker-gpu-io",
    f"$JS.API.CONSUMER.MSG.NEXT.NOETL_COMMANDS.{OWN['globex']}",
    "$JS.API.CONSUMER.MSG.NEXT.NOETL_INGEST.planner-0",
    "$JS.ACK.NOETL_COMMANDS.worker-gpu-io.1.1.1.0.0",
    "$JS.ACK.NOETL_INGEST.planner-0.1.1.1.0.0",
    *("$SYS.REQ.SERVER.PING", "_INBOX_planner.x", "_INBOX_bob.x", "_INBOX.x"),
)
NOBODYS_TO_HEAR = (
    *(">", "*.>", "noetl.>", "noetl.ingest.>", "noetl.commands.>", "noetl.events.>", "noetl.dlq.>"),
    *("noetl.poke.>", "noetl.poke.grown-1", "noetl.poke.workers.>", "noetl.poke.progress.*"),
    *("noetl.offers.>", "noetl.offers.to.>", "noetl.offers.to.bob.*", "noetl.limits.>"),
    *("_INBOX.>", "_INBOX_bob.>", "_INBOX_planner.>", "_INBOX_dora.>"),
    *("$JS.>", "$JS.ACK.>", "$JS.API.>", "$JS.EVENT.>", "$SYS.>"),
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(
        tmp_path_factory.mktemp("broker"), workers=(ANN, BOB, CARL, DORA, EVE)
    ) as server:
        asyncio.run(make_streams(server))
        yield server


async def make_streams(server: NatsServer) -> None:
    declared = topology.declare_topology(
        shard_count=2, pools=("default", "gpu"), tenants=("acme", "globex")
    )
    async with open_connection(server.url, name="admin") as admin:
        await JetStreamStreams(admin, declared, now=lambda: datetime.now(UTC)).ensure_streams()


class Refusals:
    """What the broker refuses a client."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self._is_told = asyncio.Event()

    async def note_refusal(self, error: Exception) -> None:
        self._told.append(str(error).lower())
        self._is_told.set()

    async def wait_for_first(self) -> str:
        async with asyncio.timeout(60):
            await self._is_told.wait()
        return self._told[0]


@asynccontextmanager
async def entered(broker: NatsServer, user: str) -> AsyncIterator[tuple[Client, Refusals]]:
    """A client of a user, and what the broker refuses it."""
    refused, client = Refusals(), Client()
    await client.connect(broker.url_for(user), error_cb=refused.note_refusal)
    try:
        yield client, refused
    finally:
        await client.close()


async def test_a_planner_sees_how_each_queue_of_commands_stands(broker: NatsServer) -> None:
    async with open_connection(broker.url_for("planner"), name="planner") as planner:
        backlogs = JetStreamBacklogs(planner)
        listed = await backlogs.list_backlogs(topology.COMMANDS)
        assert {topology.build_worker_consumer("gpu", "spark"), *OWN.values()} <= listed.keys()
        with pytest.raises(MessagingUnavailable):
            await backlogs.list_backlogs(topology.INGEST)


@pytest.mark.parametrize("subject", NOBODYS_TO_PUBLISH)
async def test_a_worker_may_not_publish(broker: NatsServer, subject: str) -> None:
    async with entered(broker, "ann") as (client, refused):
        await client.publish(subject, b"{}")
        assert "permissions violation for publish" in await refused.wait_for_first()


@pytest.mark.parametrize("subject", NOBODYS_TO_HEAR)
@pytest.mark.parametrize("queue", ["", "workers"])
async def test_a_worker_may_not_hear(broker: NatsServer, subject: str, queue: str) -> None:
    async with entered(broker, "ann") as (client, refused):
        await client.subscribe(subject, queue=queue)
        assert "permissions violation for subscription" in await refused.wait_for_first()


@pytest.mark.parametrize(
    "subject",
    [
        "noetl.ingest.0.globex.ops.worker.default.dora",
        "noetl.ingest.0.acme.ops.worker.default.ann",
        "noetl.limits.globex.ops.calls",
        "$JS.API.CONSUMER.MSG.NEXT.NOETL_COMMANDS.worker-default-io",
        f"$JS.API.CONSUMER.MSG.NEXT.NOETL_COMMANDS.{OWN['globex']}",
        f"$JS.ACK.NOETL_COMMANDS.{OWN['globex']}.1.1.1.0.0",
        "$JS.ACK.NOETL_COMMANDS.worker-default-io.1.1.1.0.0",
    ],
)
async def test_a_tenants_worker_may_not_publish_for_others(
    broker: NatsServer, subject: str
) -> None:
    async with entered(broker, "dora") as (client, refused):
        await client.publish(subject, b"{}")
        assert "permissions violation for publish" in await refused.wait_for_first()


async def test_a_tenants_worker_hears_no_offers(broker: NatsServer) -> None:
    async with entered(broker, "dora") as (client, refused):
        await client.subscribe("noetl.offers.to.dora.*")
        assert "permissions violation for subscription" in await refused.wait_for_first()


async def store_command(broker: NatsServer, tenant: str, data: bytes) -> None:
    subject = subjects.build_command_subject(
        "default", "io", TenantId(tenant), OPS, is_own=tenant in OWN
    )
    async with open_connection(broker.url_for("outbox"), name="outbox") as outbox:
        message = Message(subject=subject, message_id=f"{tenant}-{data!r}", data=data)
        await JetStreamPublisher(outbox).publish_message(message)


@pytest.mark.parametrize(
    ("user", "tenant"), [("bob", "other"), ("dora", "acme"), ("eve", "globex")]
)
async def test_a_worker_takes_reports_and_settles_what_is_its_own(
    broker: NatsServer, user: str, tenant: str
) -> None:
    await store_command(broker, tenant, user.encode())
    name = OWN.get(tenant, "worker-default-io")
    async with open_connection(broker.url_for(user), name=user) as connection:
        consumer = JetStreamConsumer(connection, stream=topology.COMMANDS, name=name)
        (delivery,) = await consumer.fetch_batch(messages_max=9, wait_s=30)
        assert delivery.data == user.encode()
        subject = subjects.build_report_subject(0, TenantId(tenant), OPS, Reporter("default", user))
        report = Message(subject=subject, message_id=f"report-{user}", data=b"{}")
        await JetStreamPublisher(connection).publish_message(report)
        assert await delivery.extend_ack_wait()
        await delivery.ack()

        async def is_settled() -> bool:
            return await consumer.count_pending() == (0, 0)

        await eventually(is_settled)


async def test_a_tenants_worker_takes_no_command_of_another(broker: NatsServer) -> None:
    await store_command(broker, "globex", b"theirs")
    async with open_connection(broker.url_for("dora"), name="dora") as connection:
        for name in (OWN["globex"], "worker-default-io", "worker-gpu-io"):
            consumer = JetStreamConsumer(connection, stream=topology.COMMANDS, name=name)
            with pytest.raises(MessagingUnavailable):
                await consumer.fetch_batch(messages_max=1, wait_s=0.2)
    async with open_connection(broker.url_for("eve"), name="eve") as connection:
        consumer = JetStreamConsumer(connection, stream=topology.COMMANDS, name=OWN["globex"])
        (delivery,) = await consumer.fetch_batch(messages_max=9, wait_s=30)
        assert delivery.data == b"theirs"
        await delivery.ack()


@pytest.mark.parametrize(
    ("subject", "stream"),
    [
        ("noetl.ingest.0.acme.ops", "NOETL_INGEST"),
        ("noetl.commands.gpu.io.acme.ops", "NOETL_COMMANDS"),
        ("noetl.commands.default.io-own.globex.ops", "NOETL_COMMANDS"),
    ],
)
async def test_a_forged_dead_letter_becomes_nobodys_message(
    broker: NatsServer, subject: str, stream: str
) -> None:
    """A person who sends it again must not say for the worker what it may not say itself."""
    headers = {SUBJECT_HEADER: subject, STREAM_HEADER: stream, CONSUMER_HEADER: "planner-0"}
    async with open_connection(broker.url_for("bob"), name="bob") as connection:
        await connection.jetstream.publish(
            "noetl.dlq.NOETL_COMMANDS.worker-default-io", b"forged", headers=headers
        )
    async with open_connection(broker.url, name="admin") as admin:
        dead_letters = JetStreamDeadLetters(admin)
        forged = (await dead_letters.list_letters(letters_max=99))[-1]
        assert (forged.stream, forged.consumer) == ("NOETL_COMMANDS", "worker-default-io")
        with pytest.raises(MalformedMessage, match="cannot be sent again"):
            await dead_letters.requeue_letter(forged.sequence)
