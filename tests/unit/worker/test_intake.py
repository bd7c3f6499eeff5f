"""What a worker takes first, and that nothing that was asked for is lost."""

import asyncio
from collections.abc import Sequence

import pytest

from noetl_chassis.clock import SystemClock
from noetl_contracts import subjects
from noetl_contracts.commands import worker_pools
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.memory.consumer import MemoryConsumer
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Delivery, Message
from noetl_worker.commands import intake as intake_module
from noetl_worker.commands.intake import FAIR_TURNS, Intake

HIGH, NORMAL, LOW = worker_pools.IO_LANES


@pytest.fixture
async def broker() -> MemoryBroker:
    made = MemoryBroker(topology.declare_topology(shard_count=1), SystemClock())
    await made.ensure_streams()
    return made


@pytest.fixture
def intake(broker: MemoryBroker) -> Intake:
    names = topology.list_worker_consumers("default")
    return Intake([MemoryConsumer(broker, stream=topology.COMMANDS, name=name) for name in names])


async def send(broker: MemoryBroker, lane: str, *names: str) -> None:
    for name in names:
        subject = subjects.build_command_subject(
            "default", lane, TenantId("t"), OrganizationId("o")
        )
        await broker.publish_message(Message(subject=subject, message_id=name, data=name.encode()))


def texts(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.data.decode() for delivery in deliveries]


async def test_the_most_urgent_lane_is_emptied_first(broker: MemoryBroker, intake: Intake) -> None:
    await send(broker, LOW, "l1")
    await send(broker, NORMAL, "n1", "n2")
    await send(broker, HIGH, "h1", "h2")
    async with asyncio.TaskGroup() as group:
        taken = [
            texts(await intake.fetch_deliveries(group, free=2, messages_max=8, wait_s=0.1))
            for _ in range(3)
        ]
    assert taken == [["h1", "h2"], ["n1", "n2"], ["l1"]]


async def test_the_least_urgent_lane_moves_on_under_load(
    broker: MemoryBroker, intake: Intake
) -> None:
    await send(broker, LOW, "low")
    await send(broker, HIGH, *(f"h{i}" for i in range(20)))
    async with asyncio.TaskGroup() as group:
        taken = [
            *[
                await intake.fetch_deliveries(group, free=1, messages_max=8, wait_s=0.1)
                for _ in range(10)
            ]
        ]
    assert [texts(item) for item in taken].index(["low"]) == FAIR_TURNS - 1


async def test_a_free_worker_hears_of_every_lane_at_once(
    broker: MemoryBroker, intake: Intake
) -> None:
    async with asyncio.TaskGroup() as group:
        for lane in (LOW, HIGH, NORMAL):
            fetching = group.create_task(
                intake.fetch_deliveries(group, free=64, messages_max=8, wait_s=30.0)
            )
            await asyncio.sleep(0)
            await send(broker, lane, lane)
            assert texts(await fetching) == [lane]
        # The waits of the other lanes go on; what they bring is not lost.
        await send(broker, LOW, "late")
        await send(broker, HIGH, "later")
        left = await intake.close()
    assert set(texts(left)) <= {"late", "later"}


@pytest.mark.parametrize("free", [1, 2, 3, 5])
async def test_no_more_is_taken_than_there_is_room_for(
    broker: MemoryBroker, intake: Intake, free: int
) -> None:
    """Waits that go on count: what they bring finds room."""
    taken = 0
    async with asyncio.TaskGroup() as group:
        assert await intake.fetch_deliveries(group, free=free, messages_max=8, wait_s=0.2) == []
        for lane in (LOW, NORMAL, HIGH):
            await send(broker, lane, *(f"{lane}{i}" for i in range(5)))
        while taken < free:
            taken += len(
                await intake.fetch_deliveries(group, free=free - taken, messages_max=8, wait_s=0.2)
            )
        assert await intake.close() == []
    assert taken == free


class Broken:
    async def fetch_batch(self, *, messages_max: int, wait_s: float) -> list[Delivery]:
        raise MessagingUnavailable("no such consumer")

    async def count_pending(self) -> tuple[int, int]:
        return 0, 0


async def test_a_failure_loses_nothing_that_came_before_it(broker: MemoryBroker) -> None:
    consumer = MemoryConsumer(broker, stream=topology.COMMANDS, name="worker-default-io")
    intake = Intake([consumer, Broken()])
    await send(broker, NORMAL, "one")
    async with asyncio.TaskGroup() as group:
        assert texts(await intake.fetch_deliveries(group, free=8, messages_max=8, wait_s=0.1)) == [
            "one"
        ]
        with pytest.raises(MessagingUnavailable):
            await intake.fetch_deliveries(group, free=8, messages_max=8, wait_s=0.1)


@pytest.fixture
def eager(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> Intake:
    """An intake whose looks after a while come too late for a test."""
    monkeypatch.setattr(intake_module, "LOOK_S", 600.0)
    names = topology.list_worker_consumers("default")
    return Intake([MemoryConsumer(broker, stream=topology.COMMANDS, name=name) for name in names])


async def test_lanes_without_work_keep_no_room_from_the_others(
    broker: MemoryBroker, eager: Intake
) -> None:
    """However little room there is: what two empty lanes may bring leaves the rest of it."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for turn, sent in enumerate([1, 8, 8]):
            await send(broker, NORMAL, *(f"{turn}-{i}" for i in range(sent)))
            deliveries = await eager.fetch_deliveries(group, free=64, messages_max=8, wait_s=2.0)
            assert len(deliveries) == sent
        await send(broker, NORMAL, *(f"n{i}" for i in range(16)))
        assert len(await eager.fetch_deliveries(group, free=16, messages_max=8, wait_s=2.0)) == 8
        assert len(await eager.fetch_deliveries(group, free=8, messages_max=8, wait_s=2.0)) == 6


async def test_room_that_becomes_free_is_filled_at_once(
    broker: MemoryBroker, eager: Intake
) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        # With room for one, the most urgent lane is waited for; the others are not heard of.
        fetching = group.create_task(
            eager.fetch_deliveries(group, free=1, messages_max=8, wait_s=20.0)
        )
        for _ in range(9):
            await asyncio.sleep(0)
        await send(broker, NORMAL, "n1")
        for _ in range(9):
            await asyncio.sleep(0)
        assert not fetching.done()
        eager.count_ended(
            subjects.build_command_subject("default", NORMAL, TenantId("t"), OrganizationId("o"))
        )
        assert await fetching == []
        assert texts(await eager.fetch_deliveries(group, free=2, messages_max=8, wait_s=2.0)) == [
            "n1"
        ]
        # The wait for the most urgent lane goes on.
        await send(broker, HIGH, "h1")
        assert texts(await eager.close()) == ["h1"]
