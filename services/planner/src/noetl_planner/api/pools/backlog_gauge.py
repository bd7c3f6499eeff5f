"""Shows what each lane of each pool has to do: an autoscaler chooses by it how many workers run."""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

from noetl_chassis.loop import run_every
from noetl_chassis.observability import instruments, names
from noetl_contracts.commands.command_work import DEFAULT_POOL
from noetl_contracts.commands.worker_pools import LANES
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Backlog
from noetl_planner.api.http.services import ApiServices

# Autoscalers ask every 10 to 30 s.
INTERVAL_S = 5.0


async def run_backlog_gauge(services: ApiServices, stop: asyncio.Event) -> None:
    """Measure again and again, until `stop` is set."""
    await run_every(INTERVAL_S, partial(show_backlogs, services), stop=stop, name="backlogs")


async def show_backlogs(services: ApiServices) -> None:
    """Measure every lane once; raises `MessagingUnavailable`, and then shows nothing old."""
    pools = services.pools.by_stream or (() if services.pools.pool_names else (DEFAULT_POOL,))
    try:
        # One request for many consumers: tenants with a share of their own have one for each lane.
        backlogs = await services.messages.backlogs.list_backlogs(topology.COMMANDS)
    except MessagingUnavailable:
        instruments.clear_gauge(names.FRAME_BACKLOG)
        raise
    for pool in pools:
        for lane in LANES:
            count = _count_lane(backlogs, pool, lane, services.limits.tenants)
            labels = {names.POOL: pool, names.LANE: lane}
            instruments.set_gauge(names.FRAME_BACKLOG, count, labels=labels)


def _count_lane(
    backlogs: Mapping[str, Backlog], pool: str, lane: str, tenants: Iterable[str]
) -> int:
    """Count what waits in a lane or is with a worker, of tenants with a share of their own too."""
    count = 0
    for share in (None, *tenants):
        backlog = backlogs.get(topology.build_worker_consumer(pool, lane, share))
        if backlog is not None:
            count += backlog.pending + backlog.unsettled
    return count
