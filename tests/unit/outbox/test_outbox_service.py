import asyncio
from datetime import UTC, datetime

import pytest
from tests.support.manual_clock import ManualClock
from tests.support.polling import eventually
from tests.support.storage import a_request

from noetl_chassis.loop import LoopHealth
from noetl_contracts.ledger.records import OutboxRow
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.memory.consumer import MemoryConsumer
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import MESSAGE_BYTES_MAX
from noetl_outbox import domain
from noetl_outbox.service import POKE, OutboxPublisher
from noetl_storage.memory.outbox import MemoryOutbox, MemoryRequests
from noetl_storage.memory.store import MemoryStore


class World:
    """A publisher over memory; `ensure` makes the streams."""

    def __init__(self, *, rows_max: int = 10) -> None:
        self.clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        self.store = MemoryStore(clock=self.clock)
        self.broker = MemoryBroker(topology.declare_topology(shard_count=1), self.clock)
        self.requests = MemoryRequests(self.store)
        self.outbox = MemoryOutbox(self.store)
        self.rows_max = rows_max
        self.down: str | None = None

    def publisher(self, owner: str = "outbox-1") -> OutboxPublisher:
        return OutboxPublisher(
            outbox=self.outbox,
            publisher=self.broker,
            hints=self.broker,
            check=lambda: self.down,
            owner=owner,
            claim_lease_s=10,
            rows_max=self.rows_max,
        )

    async def submit(self, count: int = 1, *, data: bytes = b"fact") -> None:
        for _ in range(count):
            await self.requests.submit_request(a_request(data=data))

    async def arrived(self) -> int:
        consumer = MemoryConsumer(
            self.broker, stream=topology.INGEST, name=topology.build_planner_consumer(0)
        )
        return (await consumer.count_pending())[0]


async def test_a_committed_message_is_published_and_its_row_goes_away() -> None:
    world = World()
    await world.broker.ensure_streams()
    await world.submit(3)
    assert await world.publisher().publish_batch() == 3
    assert (await world.arrived(), await world.outbox.count_backlog()) == (3, (0, 0.0))
    assert await world.publisher().publish_batch() == 0


async def test_a_message_names_the_span_that_its_body_names() -> None:
    world = World()
    await world.broker.ensure_streams()
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for data in (b'{"facts":[],"traceparent":"%s"}' % traceparent.encode(), b"no message"):
        await world.submit(data=data)
    assert await world.publisher().publish_batch() == 2
    consumer = MemoryConsumer(
        world.broker, stream=topology.INGEST, name=topology.build_planner_consumer(0)
    )
    deliveries = await consumer.fetch_batch(messages_max=2, wait_s=1)
    assert [delivery.traceparent for delivery in deliveries] == [traceparent, None]


async def test_a_batch_has_an_end() -> None:
    world = World(rows_max=2)
    await world.broker.ensure_streams()
    await world.submit(3)
    publisher = world.publisher()
    assert [await publisher.publish_batch() for _ in range(3)] == [2, 1, 0]


async def test_without_streams_the_rows_stay_and_are_given_back() -> None:
    world = World()
    await world.submit(2)
    with pytest.raises(MessagingUnavailable, match="none of 2"):
        await world.publisher().publish_batch()
    await world.broker.ensure_streams()
    assert await world.publisher("outbox-2").publish_batch() == 2


async def test_without_a_connection_no_row_is_even_claimed() -> None:
    world = World()
    await world.broker.ensure_streams()
    await world.submit()
    world.down = "NATS is not connected"
    with pytest.raises(MessagingUnavailable, match="not connected"):
        await world.publisher().publish_batch()
    world.down = None
    assert await world.publisher("outbox-2").publish_batch() == 1


async def test_rows_of_a_dead_instance_are_taken_when_its_lease_has_ended() -> None:
    world = World()
    await world.broker.ensure_streams()
    await world.submit()
    await world.outbox.claim_rows(owner="dead", lease_s=10, rows_max=10)
    assert await world.publisher().publish_batch() == 0
    world.clock.advance_by(10.1)
    assert await world.publisher().publish_batch() == 1


async def test_publishing_again_after_a_crash_stores_the_message_once() -> None:
    world = World()
    await world.broker.ensure_streams()
    await world.submit()
    rows = await world.outbox.claim_rows(owner="dies-before-settling", lease_s=10, rows_max=10)
    await world.publisher()._publish_rows(rows)
    world.clock.advance_by(10.1)
    assert await world.publisher().publish_batch() == 1
    assert await world.arrived() == 1


async def test_a_row_that_no_stream_takes_holds_up_nobody() -> None:
    world = World()
    await world.broker.ensure_streams()
    await world.submit(data=b"x" * (MESSAGE_BYTES_MAX + 1))
    await world.submit()
    assert await world.publisher().publish_batch() == 1
    assert await world.publisher().publish_batch() == 0
    assert (await world.outbox.count_backlog())[0] == 1


async def test_a_poke_wakes_an_idle_publisher() -> None:
    world = World()
    await world.broker.ensure_streams()
    publisher, stop = world.publisher(), asyncio.Event()
    pulse = LoopHealth("publish", stale_s=1)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(
            publisher.run_until_stopped(stop=stop, loop_health=pulse, poll_s=3600, measure_s=3600)
        )
        await eventually(lambda: _is_turning(pulse))
        await world.submit()
        while await world.arrived() == 0:
            await world.broker.notify(POKE)
            await asyncio.sleep(0)
        stop.set()


def a_row(number: int) -> OutboxRow:
    request = a_request()
    return OutboxRow(
        outbox_id=number,
        execution_id=request.execution_id,
        subject=request.subject,
        message_id=str(number),
        data=b"",
    )


def test_failures_of_a_full_batch_let_others_pass() -> None:
    rows = [a_row(1), a_row(2)]
    full = domain.decide_settlement(rows, [True, False], rows_max=2)
    assert (full.settled, full.released, full.postponed) == ([1], [], [2])
    partial = domain.decide_settlement(rows, [True, False], rows_max=3)
    assert (partial.settled, partial.released, partial.postponed) == ([1], [2], [])


async def _is_turning(pulse: LoopHealth) -> bool:
    return pulse.check_health() is None
