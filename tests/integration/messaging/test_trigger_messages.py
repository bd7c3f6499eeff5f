"""Messages that start playbooks, over a real server and its permissions."""

import asyncio

from msgspec import structs
from nats.aio.client import Client
from tests.support.api import PLAYBOOK, ApiWorld
from tests.support.bus import declared, remove_streams, wait_for_pending
from tests.support.polling import PATIENCE_S
from tests.support.servers import NatsServer

from noetl_chassis.clock import SystemClock
from noetl_contracts.requests import facts
from noetl_contracts.requests.triggers import Trigger
from noetl_messaging.jetstream.connection import open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.streams import topology
from noetl_planner.api.catalog import playbooks
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.triggers import trigger_listener
from noetl_planner.api.triggers.trigger_listener import TriggerListener
from noetl_playbook.source.problems import Level

MESSAGES = 20


async def serving(world: ApiWorld) -> ApiServices:
    services = world.services()
    await playbooks.register_text(services, PLAYBOOK, level=Level.TOLERANT)
    await services.registry.triggers.put_trigger(
        Trigger(**services.tenant_scope, name="orders", subject="orders.*", path="demo/hello")
    )
    return services


def begun(world: ApiWorld) -> list[int]:
    return sorted(
        fact.workload["n"]
        for message in world.store.message_by_id.values()
        for fact in facts.decode_fact_batch(message.row.data).facts
        if isinstance(fact, facts.ExecutionRequested)
    )


async def publish(nats: NatsServer, services: ApiServices) -> None:
    source = Client()
    await source.connect(nats.url_for("source"))
    place = services.tenant_scope
    subject = f"noetl.triggers.{place['tenant_id']}.{place['organization_id']}.orders.created"
    for n in range(MESSAGES):
        await source.jetstream().publish(subject, b'{"n": %d}' % n)
    await source.close()


async def test_each_message_starts_one_execution_whichever_planner_dies(nats: NatsServer) -> None:
    world = ApiWorld()
    services = await serving(world)
    async with open_connection(nats.url, name="admin") as admin:
        await remove_streams(admin, nats)
        await JetStreamStreams(admin, declared(), now=SystemClock().now).ensure_streams()
        await publish(nats, services)
        async with open_connection(nats.url_for("planner"), name="planner") as bus:

            def consumer() -> JetStreamConsumer:
                return JetStreamConsumer(
                    bus, stream=topology.TRIGGERS, name=topology.TRIGGER_CONSUMER
                )

            dead = JetStreamDeadLetters(bus)
            # One planner asks for the executions of its messages and dies before it settles them.
            for delivery in await consumer().fetch_batch(messages_max=7, wait_s=PATIENCE_S):
                await trigger_listener.start_from_message(services, delivery)
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(2):
                    listener = TriggerListener(services, consumer=consumer(), dead_letters=dead)
                    tasks.create_task(listener.run_until_stopped(stop))
                await wait_for_pending(consumer(), 0, 0)
                stop.set()
            assert await dead.count_letters() == 0
    assert begun(world) == list(range(MESSAGES))


async def test_a_filter_judges_messages_of_a_real_stream(nats: NatsServer) -> None:
    world = ApiWorld()
    services = await serving(world)
    trigger = await services.registry.triggers.find_trigger("orders", **services.tenant_scope)
    assert trigger is not None
    wanted = structs.replace(trigger, filter="{{ body.n >= 15 }}")
    await services.registry.triggers.put_trigger(wanted)
    async with open_connection(nats.url, name="admin") as admin:
        await remove_streams(admin, nats)
        await JetStreamStreams(admin, declared(), now=SystemClock().now).ensure_streams()
        await publish(nats, services)
        async with open_connection(nats.url_for("planner"), name="planner") as bus:
            consumer = JetStreamConsumer(
                bus, stream=topology.TRIGGERS, name=topology.TRIGGER_CONSUMER
            )
            dead = JetStreamDeadLetters(bus)
            listener = TriggerListener(services, consumer=consumer, dead_letters=dead)
            taken = 0
            while taken < MESSAGES:
                deliveries = await consumer.fetch_batch(messages_max=MESSAGES, wait_s=PATIENCE_S)
                taken += len(deliveries)
                await listener.take_deliveries(deliveries)
            await wait_for_pending(consumer, 0, 0)
            assert await dead.count_letters() == 0
    assert begun(world) == list(range(15, MESSAGES))
