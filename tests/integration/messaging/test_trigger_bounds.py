"""Executions of a trigger that run at once: other messages wait in the stream of a real server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs
from nats.aio.client import Client
from tests.support.api import PLAYBOOK, ApiWorld, beginning, ending
from tests.support.bus import remove_streams, wait_for_pending
from tests.support.polling import eventually
from tests.support.servers import NatsServer

from noetl_chassis.clock import SystemClock
from noetl_contracts.requests import facts
from noetl_contracts.requests.triggers import Trigger
from noetl_messaging.jetstream.connection import Connection, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.streams import topology
from noetl_planner.api.catalog import playbooks
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.triggers import message_waits
from noetl_planner.api.triggers.trigger_listener import TriggerListener
from noetl_playbook.source.problems import Level

MESSAGES, AT_ONCE = 9, 2
WHOLE = topology.declare_topology(shard_count=1)


def asked(world: ApiWorld) -> dict[int, str]:
    """Return the execution of each message that started one."""
    return {
        fact.workload["n"]: stored.request.execution_id
        for stored in world.store.request_by_id.values()
        for fact in facts.decode_fact_batch(stored.request.data).facts
        if isinstance(fact, facts.ExecutionRequested) and "n" in fact.workload
    }


async def publish(nats: NatsServer, services: ApiServices, subject: str, *, count: int) -> None:
    source = Client()
    await source.connect(nats.url_for("source"))
    place = services.tenant_scope
    prefix = f"noetl.triggers.{place['tenant_id']}.{place['organization_id']}"
    for n in range(count):
        await source.jetstream().publish(f"{prefix}.{subject}", b'{"n": %d}' % n)
    await source.close()


def consumer_of(bus: Connection) -> JetStreamConsumer:
    return JetStreamConsumer(bus, stream=topology.TRIGGERS, name=topology.TRIGGER_CONSUMER)


@asynccontextmanager
async def listening(services: ApiServices, bus: Connection) -> AsyncIterator[None]:
    """Two planners take messages for as long as the block lasts."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            listener = TriggerListener(
                services, consumer=consumer_of(bus), dead_letters=JetStreamDeadLetters(bus)
            )
            tasks.create_task(listener.run_until_stopped(stop))
        try:
            yield
        finally:
            stop.set()


async def test_no_more_run_at_once_than_a_trigger_says_also_after_restarts(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_waits, "WAIT_S", 0.1)
    monkeypatch.setattr(message_waits, "FULL_S", 0.05)
    world = ApiWorld()
    services = world.services()
    await playbooks.register_text(services, PLAYBOOK, level=Level.TOLERANT)
    bounded = Trigger(
        **services.tenant_scope,
        name="orders",
        subject="orders.*",
        path="demo/hello",
        max_in_flight=AT_ONCE,
    )
    await services.registry.triggers.put_trigger(bounded)
    done: set[int] = set()

    async def are_places_taken() -> bool:
        return len(asked(world)) == len(done) + AT_ONCE

    async with open_connection(nats.url, name="admin") as admin:
        await remove_streams(admin, nats)
        await JetStreamStreams(admin, WHOLE, now=SystemClock().now).ensure_streams()
        await publish(nats, services, "orders.created", count=MESSAGES)
        async with open_connection(nats.url_for("planner"), name="planner") as bus:
            while len(done) < MESSAGES - AT_ONCE:
                # Planners come and go; what runs is known to the next ones.
                async with listening(services, bus):
                    assert await eventually(are_places_taken)
                    n = min(set(asked(world)) - done)
                    execution_id = asked(world)[n]
                    await world.append(execution_id, beginning() + ending())
                    await world.project(execution_id)
                    done.add(n)
                    assert await eventually(are_places_taken)
            await wait_for_pending(consumer_of(bus), 0, 0)
            assert await JetStreamDeadLetters(bus).count_letters() == 0
    assert sorted(asked(world)) == list(range(MESSAGES))


async def test_messages_of_another_trigger_start_while_those_of_a_full_one_wait(
    nats: NatsServer,
) -> None:
    world = ApiWorld()
    services = world.services()
    await playbooks.register_text(services, PLAYBOOK, level=Level.TOLERANT)
    bounded = Trigger(
        **services.tenant_scope, name="a", subject="a.*", path="demo/hello", max_in_flight=1
    )
    await services.registry.triggers.put_trigger(bounded)
    await services.registry.triggers.put_trigger(
        structs.replace(bounded, name="b", subject="b.*", max_in_flight=None)
    )
    async with open_connection(nats.url, name="admin") as admin:
        await remove_streams(admin, nats)
        await JetStreamStreams(admin, WHOLE, now=SystemClock().now).ensure_streams()
        await publish(nats, services, "a.one", count=100)
        await publish(nats, services, "b.one", count=3)
        async with (
            open_connection(nats.url_for("planner"), name="planner") as bus,
            listening(services, bus),
        ):

            async def have_started() -> bool:
                return len(world.store.request_by_id) == 1 + 3

            assert await eventually(have_started)
            await wait_for_pending(consumer_of(bus), 0, 99)
