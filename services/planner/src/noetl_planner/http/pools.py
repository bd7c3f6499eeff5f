"""Pools: which there are, how they are served, and what waits there."""

from litestar import get
from msgspec import Struct

from noetl_planner.http import waiting
from noetl_planner.http.services import Services
from noetl_planner.http.waiting import PoolView


class PoolList(Struct, frozen=True, kw_only=True):
    """The pools of this deployment."""

    pools: list[PoolView]


@get("/pools", tags=["pools"])
async def list_pools(services: Services) -> PoolList:
    """List the pools and what waits in their lanes."""
    return PoolList(pools=await waiting.list_pools(services))


ROUTES = [list_pools]
