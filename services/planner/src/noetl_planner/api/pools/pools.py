"""Pools and workers API: transport, waiting commands, free capacity and leases."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from litestar import get
from litestar.params import QueryParameter
from msgspec import Struct

from noetl_chassis import identity
from noetl_contracts.ids import EventId
from noetl_contracts.ledger.records import LeasedCommand
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.pools import lost_work, pool_waits
from noetl_planner.api.pools.pool_waits import PoolView

LEASES_MAX = 500


class PoolList(Struct, frozen=True, kw_only=True):
    """The pools of this deployment."""

    pools: list[PoolView]


@get("/pools", tags=["pools"])
async def list_pools(services: Services) -> PoolList:
    """List the pools and what waits in their lanes."""
    return PoolList(pools=await pool_waits.list_pool_views(services))


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker as it last described itself, with what it was offered since.

    `store_waits` of its calls wait for the payload store: it is away, and their commands with it.
    Tasks lack `missing_walls` on its machine; null: none has run there yet.
    """

    worker_id: str
    pool: str
    lanes: list[str]
    locality: dict[str, str]
    running: int
    capacity: int
    free: int
    store_waits: int
    missing_walls: list[str] | None


class WorkerList(Struct, frozen=True, kw_only=True):
    """The workers that spoke lately, by JetStream's pools; those over HTTP are not heard."""

    workers: list[WorkerView]


@get("/workers", tags=["pools"])
async def list_workers(services: Services) -> WorkerList:
    """List the workers of all pools, where they are and what they could still take.

    Those of other tenants alone are shown to who administers the whole installation.
    """
    beats = sorted(
        (
            beat
            for beat in services.shards.worker_presence.list_beats()
            if not beat.tenants or services.tenant_id in beat.tenants or services.sees_all_tenants
        ),
        key=lambda beat: (beat.pool, beat.worker_id),
    )
    return WorkerList(
        workers=[
            WorkerView(
                worker_id=beat.worker_id,
                pool=beat.pool,
                lanes=list(beat.lanes),
                locality=beat.locality,
                running=beat.running,
                capacity=beat.capacity,
                free=beat.free_capacity,
                store_waits=beat.store_waits,
                missing_walls=None if beat.missing_walls is None else list(beat.missing_walls),
            )
            for beat in beats
        ]
    )


class LeaseView(Struct, frozen=True, kw_only=True):
    """A command that a worker holds since it began; `frame_id` is the frame that it is at.

    The lease lasts `lease_s` after the worker was heard last. It ends at `ends_at`; null: JetStream
    extends it, and alone knows. `is_silent`: nothing is heard of the command, nor of the worker.
    """

    worker_id: str
    execution_id: str
    path: str
    step: str
    command_id: str
    frame_id: str | None
    attempt: int
    pool: str
    lane: str
    since: datetime | None
    lease_s: float
    ends_at: datetime | None
    heard_at: datetime
    is_silent: bool


class LeaseList(Struct, frozen=True, kw_only=True):
    """The commands that workers hold, the longest held first; `has_more`: there are more."""

    leases: list[LeaseView]
    has_more: bool


@get("/workers/leases", tags=["pools"])
async def list_leases(
    services: Services,
    worker: Annotated[str | None, QueryParameter(min_length=1, max_length=200)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=LEASES_MAX)] = LEASES_MAX,
) -> LeaseList:
    """List what workers hold of this organization now: all of them, or one."""
    leased = await services.history.projections.list_leased(
        **services.tenant_scope, worker_id=worker, commands_max=limit + 1
    )
    return LeaseList(
        leases=[_view_lease(services, command) for command in leased[:limit]],
        has_more=len(leased) > limit,
    )


def _view_lease(services: ApiServices, command: LeasedCommand) -> LeaseView:
    is_by_http = command.pool in services.pools.by_http
    # Claims over HTTP have the deployment's lease; a playbook changes nothing there.
    policy_s = None if is_by_http else command.lease_s
    lease_s = policy_s or services.limits.command_lease_s
    return LeaseView(
        worker_id=command.worker_id or "",
        execution_id=command.execution_id,
        path=command.path,
        step=command.step,
        command_id=command.command_id,
        frame_id=command.frame_id,
        attempt=command.attempt,
        pool=command.pool,
        lane=command.lane,
        since=_find_minted_at(command.started_event_id),
        lease_s=lease_s,
        ends_at=command.heard_at + timedelta(seconds=lease_s) if is_by_http else None,
        heard_at=command.heard_at,
        is_silent=lost_work.is_holder_silent(services, command),
    )


def _find_minted_at(event_id: EventId | None) -> datetime | None:
    if event_id is None:
        return None
    return datetime.fromtimestamp(identity.read_minted_at_ms(event_id) / 1000, UTC)


ROUTES = [list_pools, list_workers, list_leases]
