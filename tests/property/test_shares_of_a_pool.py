"""One tenant that floods a pool leaves the others their share of it."""

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.support.polling import eventually

from noetl_chassis.clock import SystemClock
from noetl_chassis.loop import LoopHealth
from noetl_contracts import subjects
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.memory.consumer import MemoryConsumer
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Delivery, Message
from noetl_worker.commands.intake import OTHERS, Intake, SharedIntake
from noetl_worker.domain.admission import allot_places
from noetl_worker.service import Worker

FLOOD, MODEST = "flood", "modest"
PLACES = 4
tenants = st.sampled_from(["a", "b", "c", "d"])
weights = st.fixed_dictionaries({name: st.integers(1, 5) for name in "abcd"})


@given(st.integers(0, 40), st.sets(tenants), st.dictionaries(tenants, st.integers(0, 20)), weights)
def test_room_goes_to_whoever_has_least_for_its_weight(
    room: int, waiting: set[str], running: dict[str, int], weighed: dict[str, int]
) -> None:
    places = allot_places(room, waiting=waiting, running=running, weights=weighed)
    assert set(places) == waiting
    assert sum(places.values()) == (room if waiting else 0)
    for item in waiting:
        for other in waiting:
            if places[other]:
                # The last place of another was not one that this one had more right to.
                has = (running.get(item, 0) + places[item] + 1) / weighed[item]
                assert (running.get(other, 0) + places[other]) / weighed[other] <= has


@given(st.integers(1, 60), weights, st.integers(0, 7))
def test_of_an_empty_worker_each_gets_its_share_whole(
    room: int, weighed: dict[str, int], first: int
) -> None:
    places = allot_places(room, waiting=weighed, running={}, weights=weighed, first=first)
    total = sum(weighed.values())
    assert all(places[name] >= room * weighed[name] // total for name in weighed)


class Work:
    """Stands for the lanes: what it attends to is done at the next opportunity."""

    running_count = 0

    def __init__(self) -> None:
        self.begun: list[str] = []

    async def listen_for_cancellations(self) -> None:
        await asyncio.Event().wait()

    async def handle_delivery(self, delivery: Delivery) -> None:
        self.begun.append(subjects.parse_command_subject(delivery.subject).tenant_id)
        await asyncio.sleep(0.001)
        await delivery.ack()

    def drain_slots(self) -> None:
        pass

    def release_commands(self) -> None:
        pass


def lanes(broker: MemoryBroker, tenant_id: str | None = None) -> Intake:
    names = topology.list_worker_consumers("default", tenant_id=tenant_id)
    return Intake([MemoryConsumer(broker, stream=topology.COMMANDS, name=name) for name in names])


async def send(broker: MemoryBroker, tenant_id: str, count: int, *, has_share: bool) -> None:
    for number in range(count):
        subject = subjects.build_command_subject(
            "default", "io", TenantId(tenant_id), OrganizationId("o"), is_own=has_share
        )
        message_id = f"{tenant_id}-{number}"
        await broker.publish_message(Message(subject=subject, message_id=message_id, data=b""))


async def served(*, weighed: dict[str, int], modest: int = 40) -> list[str]:
    """Flood a pool, then let a modest tenant send a little; return who was served since."""
    declared = topology.declare_topology(shard_count=1, tenants=[MODEST])
    broker = MemoryBroker(declared, SystemClock())
    await broker.ensure_streams()
    work, stop = Work(), asyncio.Event()
    shares = {OTHERS: lanes(broker), MODEST: lanes(broker, MODEST)}
    worker = Worker(
        intake=SharedIntake(shares, weights=weighed),
        lane=work,  # type: ignore[arg-type]  # what a worker asks of its lane, and no more
        commands_max=PLACES,
        messages_max=PLACES,
        wait_s=0.05,
    )
    await send(broker, FLOOD, 600, has_share=False)
    running = asyncio.create_task(
        worker.run(stop=stop, loop_health=LoopHealth("commands", stale_s=30), drain_s=5)
    )

    async def is_flooded() -> bool:
        return len(work.begun) >= PLACES

    async def is_modest_one_served() -> bool:
        return work.begun.count(MODEST) >= modest

    await eventually(is_flooded)
    before = len(work.begun)
    await send(broker, MODEST, modest, has_share=True)
    await eventually(is_modest_one_served, timeout_s=60)
    stop.set()
    await running
    last = max(at for at, name in enumerate(work.begun) if name == MODEST)
    return work.begun[before : last + 1]


async def test_who_sends_little_is_served_as_often_as_who_floods() -> None:
    counter = Counter(await served(weighed={}))
    assert counter[MODEST] == 40
    # One for one, and what was running or on its way when the modest one came.
    assert counter[FLOOD] <= 40 + 2 * PLACES


async def test_a_weight_of_three_serves_three_times_as_often() -> None:
    counter = Counter(await served(weighed={MODEST: 3}, modest=60))
    assert counter[FLOOD] <= 60 / 3 + 3 * PLACES


async def test_a_tenant_alone_has_the_whole_pool() -> None:
    declared = topology.declare_topology(shard_count=1, tenants=[MODEST])
    broker = MemoryBroker(declared, SystemClock())
    await broker.ensure_streams()
    shares = {OTHERS: lanes(broker), MODEST: lanes(broker, MODEST)}
    intake = SharedIntake(shares, weights={})
    await send(broker, FLOOD, 20, has_share=False)
    async with asyncio.TaskGroup() as group:
        deliveries = await intake.fetch_deliveries(group, free=20, messages_max=16, wait_s=0.1)
        assert len(deliveries) == 16
        assert await intake.close() == []
