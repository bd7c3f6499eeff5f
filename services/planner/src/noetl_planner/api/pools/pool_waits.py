"""Explains why a command waits: other commands are ahead, or its pool has no worker."""

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta

from msgspec import Struct, structs

from noetl_contracts.commands.command_work import DEFAULT_POOL
from noetl_contracts.commands.worker_pools import LANES, get_lane_host
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import IssuedCommand
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Backlog
from noetl_planner.api.http.services import ApiServices

# What has waited for less is on its way.
WAITED_S = 2.0
COMMANDS_MAX = 500
PLACES_MAX = 8
HTTP, JETSTREAM = "http", "jetstream"


class Waiting(Struct, frozen=True, kw_only=True):
    """Commands of one execution that wait at one place, and why.

    `is_served` is None while the bus does not answer: nobody knows then. `is_share` tells that
    workers take them from the tenant's own share of the pool.
    """

    pool: str
    lane: str
    commands: int
    is_served: bool | None
    reason: str
    is_share: bool = False


class LaneView(Struct, frozen=True, kw_only=True):
    """How one lane of a pool stands; `asking` counts the workers that wait for work."""

    lane: str
    pending: int
    unsettled: int
    asking: int


class PoolView(Struct, frozen=True, kw_only=True):
    """A pool: how its workers get commands, whether there are any, and what waits.

    `served` is None while the bus does not answer.
    """

    name: str
    transport: str
    served: bool | None
    lanes: list[LaneView]


async def list_late_commands(
    services: ApiServices, execution_id: ExecutionId
) -> list[IssuedCommand]:
    """List commands of an execution that wait for a worker for longer than a moment."""
    issued = await services.history.projections.list_issued(
        **services.tenant_scope, execution_id=execution_id, commands_max=COMMANDS_MAX
    )
    before = services.clock.now() - timedelta(seconds=WAITED_S)
    return [command for command in issued if command.since < before]


async def explain_waits(services: ApiServices, late: Iterable[IssuedCommand]) -> list[Waiting]:
    """Say how many commands wait at each place, and why."""
    return [
        await explain_place(services, pool, lane, commands=count)
        for (pool, lane), count in _count_places(late).most_common(PLACES_MAX)
    ]


async def list_pool_views(services: ApiServices) -> list[PoolView]:
    """Show every pool of the deployment.

    A pool's stream is that of all tenants: who does not administer the whole installation is shown
    what waits of the own organization alone.
    """
    streamed = services.pools.by_stream or (
        (DEFAULT_POOL,) if not services.pools.pool_names else ()
    )
    pool_views = [await _view_streamed_pool(services, name) for name in streamed]
    if not services.sees_all_tenants:
        waiting = await services.history.projections.list_urgent(
            **services.tenant_scope, pools=streamed, commands_max=COMMANDS_MAX
        )
        pool_views = [_hide_others(view, waiting) for view in pool_views]
    issued = await services.history.projections.list_urgent(
        **services.tenant_scope, pools=services.pools.by_http, commands_max=COMMANDS_MAX
    )
    return pool_views + [_view_http_pool(name, issued) for name in services.pools.by_http]


async def _view_streamed_pool(services: ApiServices, name: str) -> PoolView:
    try:
        backlogs = {lane: await _find_backlog(services, name, lane) for lane in LANES}
    except MessagingUnavailable:
        return PoolView(name=name, transport=JETSTREAM, served=None, lanes=[])
    lanes = [_view_lane(lane, backlog) for lane, backlog in backlogs.items() if backlog is not None]
    is_served = any(
        _is_lane_served(services, name, lane, backlog) for lane, backlog in backlogs.items()
    )
    return PoolView(name=name, transport=JETSTREAM, served=is_served, lanes=lanes)


def _hide_others(view: PoolView, issued: Iterable[IssuedCommand]) -> PoolView:
    """Count what waits of one organization; what its workers hold is anybody's."""
    counts = _count_places(issued)
    lanes = [
        structs.replace(lane, pending=counts[view.name, lane.lane], unsettled=0)
        for lane in view.lanes
    ]
    return structs.replace(view, lanes=lanes)


def _view_http_pool(name: str, issued: Iterable[IssuedCommand]) -> PoolView:
    """Show a pool whose workers ask for commands: who they are is known when they ask."""
    counts = Counter(
        issued_command.lane for issued_command in issued if issued_command.pool == name
    )
    lanes = [
        LaneView(lane=lane, pending=count, unsettled=0, asking=0)
        for lane, count in sorted(counts.items())
    ]
    return PoolView(name=name, transport=HTTP, served=True, lanes=lanes)


def _count_places(issued: Iterable[IssuedCommand]) -> Counter[tuple[str, str]]:
    return Counter((issued_command.pool, issued_command.lane) for issued_command in issued)


async def explain_place(
    services: ApiServices, pool: str, lane: str, *, commands: int = 1
) -> Waiting:
    """Say why commands wait at a lane of a pool."""
    is_share = pool not in services.pools.by_http and _find_share(services) is not None
    is_served, reason = await _explain_pool(services, pool, lane)
    return Waiting(
        pool=pool,
        lane=lane,
        commands=commands,
        is_served=is_served,
        reason=reason,
        is_share=is_share,
    )


async def _explain_pool(services: ApiServices, pool: str, lane: str) -> tuple[bool | None, str]:
    """Tell whether a pool has workers, and what its commands wait for."""
    if pool in services.pools.by_http:
        return True, f"until a worker of pool {pool!r} claims it over HTTP"
    try:
        backlog = await _find_backlog(services, pool, lane)
    except MessagingUnavailable:
        return None, f"not known: NATS does not tell how pool {pool!r} stands"
    is_served = _is_lane_served(services, pool, lane, backlog)
    share = _find_share(services)
    if share is not None:
        return is_served, _explain_share(pool, share, backlog if is_served else None)
    if not is_served:
        return False, f"no worker serves pool {pool!r}: start one with NOETL_WORKER_POOL={pool}"
    return True, f"behind other work of pool {pool!r}"


def _is_lane_served(services: ApiServices, pool: str, lane: str, backlog: Backlog | None) -> bool:
    """Tell whether somebody asks for commands of a lane, or holds some and was heard lately.

    What a worker held that was killed stays unsettled for as long as no other one asks.
    """
    if backlog is None or backlog.asking > 0:
        return backlog is not None
    presence = services.shards.worker_presence
    return backlog.unsettled > 0 and presence.has_worker(pool, get_lane_host(lane)) is not False


def _explain_share(pool: str, tenant_id: str, backlog: Backlog | None) -> str:
    """Say why commands wait in a tenant's own share of a pool; only its own work is counted.

    Without a backlog nobody serves the share.
    """
    share = f"the share of tenant {tenant_id!r} in pool {pool!r}"
    if backlog is None:
        return (
            f"no worker serves {share}: start one with NOETL_WORKER_POOL={pool} and {tenant_id} "
            "in NOETL_WORKER_TENANTS"
        )
    return (
        f"until {share} has a free place: {backlog.pending} commands of it wait, "
        f"{backlog.unsettled} are with workers"
    )


def _find_share(services: ApiServices) -> str | None:
    """Return the tenant if it has queues of its own, which workers serve by its weight."""
    return services.tenant_id if services.tenant_id in services.limits.tenants else None


async def _find_backlog(services: ApiServices, pool: str, lane: str) -> Backlog | None:
    """Ask how a lane stands, None where nobody has served it; raises `MessagingUnavailable`."""
    consumer = topology.build_worker_consumer(pool, lane, _find_share(services))
    return await services.messages.backlogs.find_backlog(
        stream=topology.COMMANDS, consumer=consumer
    )


def _view_lane(lane: str, backlog: Backlog) -> LaneView:
    return LaneView(
        lane=lane, pending=backlog.pending, unsettled=backlog.unsettled, asking=backlog.asking
    )
