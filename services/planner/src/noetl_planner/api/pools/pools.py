"""Pools and workers API: transport, waiting commands and free capacity."""

from litestar import get
from msgspec import Struct

from noetl_planner.api.http.services import Services
from noetl_planner.api.pools import pool_waits
from noetl_planner.api.pools.pool_waits import PoolView


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


ROUTES = [list_pools, list_workers]
