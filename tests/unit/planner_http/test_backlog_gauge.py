"""What a planner shows of the work of each lane: autoscalers choose by it how many workers run."""

import pytest
from opentelemetry.metrics import CallbackOptions
from tests.support.api import ApiWorld

from noetl_chassis.clock import SystemClock
from noetl_chassis.observability import instruments, names
from noetl_contracts import subjects
from noetl_contracts.commands.worker_pools import LANES, Pools
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.memory.consumer import MemoryBacklogs
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Backlog, Message
from noetl_planner.api.pools.backlog_gauge import show_backlogs
from noetl_planner.domain.decision.draft import Limits

POOLS = Pools(by_stream=("default", "gpu"))
TENANT = "acme"


@pytest.fixture(autouse=True)
def no_earlier_values() -> None:
    """A process has one telemetry, and other tests of it set every gauge."""
    instruments.clear_gauge(names.FRAME_BACKLOG)


class AbsentBus:
    """A bus that does not answer."""

    async def list_backlogs(self, stream: str) -> dict[str, Backlog]:
        raise MessagingUnavailable(f"asking about {stream}")


class CountingBus:
    """Counts what it is asked."""

    def __init__(self, backlogs: MemoryBacklogs) -> None:
        self._backlogs = backlogs
        self.asked = 0

    async def list_backlogs(self, stream: str) -> dict[str, Backlog]:
        self.asked += 1
        return await self._backlogs.list_backlogs(stream)

    async def find_backlog(self, *, stream: str, consumer: str) -> Backlog | None:
        self.asked += 1
        return await self._backlogs.find_backlog(stream=stream, consumer=consumer)


def list_shown() -> dict[tuple[str, str], float]:
    """Read what a scrape would be told."""
    gauge = instruments._get_gauge(names.FRAME_BACKLOG)  # a process has one telemetry
    values = gauge._observe_values(CallbackOptions())
    return {
        (str((value.attributes or {})["pool"]), str((value.attributes or {})["lane"])): value.value
        for value in values
    }


async def test_every_lane_of_every_pool_is_shown_with_the_work_of_all_tenants() -> None:
    broker = MemoryBroker(
        topology.declare_topology(shard_count=1, pools=POOLS.by_stream, tenants=(TENANT,)),
        SystemClock(),
    )
    await broker.ensure_streams()
    limits = Limits(pools=POOLS, tenants=frozenset({TENANT}))
    services = ApiWorld().services(limits=limits, backlogs=MemoryBacklogs(broker))
    await show_backlogs(services)
    lanes = {(pool, lane) for pool in POOLS.by_stream for lane in LANES}
    # An autoscaler that finds no number takes that for a failure.
    assert list_shown() == dict.fromkeys(lanes, 0)
    for number, is_own in enumerate((True, True, False)):
        command = subjects.build_command_subject(
            "gpu", "io", TenantId(TENANT), OrganizationId("main"), is_own=is_own
        )
        await broker.publish_message(Message(subject=command, message_id=str(number), data=b"{}"))
    await show_backlogs(services)
    assert list_shown() == dict.fromkeys(lanes, 0) | {("gpu", "io"): 3}


async def test_the_bus_is_asked_once_for_all_pools_and_tenants() -> None:
    tenants = tuple(f"t{number}" for number in range(100))
    broker = MemoryBroker(
        topology.declare_topology(shard_count=1, pools=POOLS.by_stream, tenants=tenants),
        SystemClock(),
    )
    await broker.ensure_streams()
    bus = CountingBus(MemoryBacklogs(broker))
    limits = Limits(pools=POOLS, tenants=frozenset(tenants))
    await show_backlogs(ApiWorld().services(limits=limits, backlogs=bus))
    assert bus.asked == 1


async def test_nothing_of_before_is_shown_when_the_bus_is_away() -> None:
    """Old numbers would hold a pool at its size, or at none, for as long as nobody counts."""
    labels = {names.POOL: "default", names.LANE: "io"}
    instruments.set_gauge(names.FRAME_BACKLOG, 900, labels=labels)
    with pytest.raises(MessagingUnavailable):
        await show_backlogs(ApiWorld().services(backlogs=AbsentBus()))
    assert list_shown() == {}
