"""The status of an execution says who waits for the payload store, as long as somebody does."""

import asyncio
from datetime import UTC, datetime

import pytest
from litestar.testing import AsyncTestClient
from tests.support.api import SHARD_COUNT, ApiWorld, beginning
from tests.support.polling import eventually
from tests.support.storage import an_execution

from noetl_chassis.clock import SystemClock
from noetl_cli.commands.executions.status import format_status_lines
from noetl_contracts import subjects
from noetl_contracts.commands.worker_pools import WorkerHeartbeat
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import ExecutionId, WorkerId
from noetl_contracts.store_waits import StoreWait, decode_store_wait
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.streams import topology
from noetl_planner.api.app import create_app
from noetl_planner.shards.store_waits import EXECUTIONS_MAX, SILENT_S, StoreWaits
from noetl_storage.ports.errors import StorageFull

ONE = ExecutionId("1")


class Clock:
    """Time as a test wants it."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at_s, UTC)

    def monotonic_s(self) -> float:
        return self.at_s


async def test_a_status_says_who_waits_for_the_store(world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning())
    await world.project(execution_id)
    services = world.services()
    async with AsyncTestClient(create_app(services)) as api:
        url = f"/api/executions/{execution_id}/status"
        assert (await api.get(url)).json()["store_waits"] == []
        services.shards.store_waits.note_wait(
            StoreWait(execution_id=execution_id, reason="disk full")
        )
        services.shards.worker_presence.note_beat(
            WorkerHeartbeat(
                worker_id=WorkerId("worker-7"),
                pool="default",
                lanes=("io",),
                running=1,
                capacity=4,
                store_waits=1,
                store_waiting=(execution_id,),
            )
        )
        status = (await api.get(url)).json()
        assert [wait["who"] for wait in status["store_waits"]] == ["planner", "worker-7"]
        assert "waits for the payload store (planner): disk full" in format_status_lines(status)
        services.shards.store_waits.note_wait(StoreWait(execution_id=execution_id))
        services.shards.worker_presence.forget_worker(WorkerId("worker-7"))
        assert (await api.get(url)).json()["store_waits"] == []


async def test_an_api_hears_the_planner_of_another_process() -> None:
    clock = SystemClock()
    broker = MemoryBroker(topology.declare_topology(shard_count=SHARD_COUNT), clock)
    here, there = StoreWaits(clock), StoreWaits(clock)
    listening = asyncio.create_task(here.listen_to_planners(broker))

    async def is_heard() -> bool:
        # Hints are for those who listen at the time.
        await there.announce_wait(broker, ONE, StorageFull("no space left on device"))
        return here.find_reason(ONE) == "no space left on device"

    async def has_ended() -> bool:
        return here.find_reason(ONE) is None

    try:
        assert await eventually(is_heard)
        await broker.broadcast(subjects.STORE_WAITS, b"no wait")
        await there.announce_end(broker, ONE)
        assert await eventually(has_ended)
    finally:
        listening.cancel()


async def test_only_who_was_said_to_wait_is_said_to_go_on() -> None:
    broker = MemoryBroker(topology.declare_topology(shard_count=SHARD_COUNT), SystemClock())
    said = broker.subscribe(subjects.STORE_WAITS)
    first = asyncio.ensure_future(anext(said))
    await asyncio.sleep(0)
    waits = StoreWaits(Clock())
    await waits.announce_end(broker, ExecutionId("2"))
    await waits.announce_wait(broker, ONE, StorageFull("full"))
    assert decode_store_wait(await first) == StoreWait(execution_id=ONE, reason="full")


def test_a_wait_of_which_nothing_is_heard_is_forgotten() -> None:
    clock = Clock()
    waits = StoreWaits(clock)
    waits.note_wait(StoreWait(execution_id=ONE, reason="full"))
    clock.at_s = SILENT_S
    assert waits.find_reason(ONE) == "full"
    clock.at_s = SILENT_S + 1
    assert waits.find_reason(ONE) is None


def test_so_many_waits_are_remembered() -> None:
    waits = StoreWaits(Clock())
    for number in range(EXECUTIONS_MAX + 1):
        waits.note_wait(StoreWait(execution_id=ExecutionId(str(number)), reason="full"))
    assert waits.find_reason(ExecutionId("0")) is None
    assert waits.find_reason(ONE) == "full"


@pytest.mark.parametrize(
    "data", [b"{", b"{}", b'{"execution_id": "1", "reason": "%s"}' % (b"x" * 3000)]
)
def test_what_is_no_wait_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage, match="a wait for the store"):
        decode_store_wait(data)
