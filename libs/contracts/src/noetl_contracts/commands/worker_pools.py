"""Pools and lanes: which queue a command waits in, and the heartbeats of workers."""

import re
from collections.abc import Iterable
from enum import StrEnum

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands import placement
from noetl_contracts.commands.command_work import IO_LANE, SPARK_LANE
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import ExecutionId, WorkerId
from noetl_contracts.locators import DISTANCES, find_distance

POOL_CHARACTERS_MAX = 32
POOL_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9_-]{{0,{POOL_CHARACTERS_MAX - 1}}}$"
POOL_HINT = f"use 1 to {POOL_CHARACTERS_MAX} letters, digits, '_' or '-', a letter or digit first"
BEAT_BYTES_MAX = 4096
# How often a worker speaks, and after which silence it counts as gone.
BEAT_S = 5.0
SILENT_S = 3 * BEAT_S


class Pools(Struct, frozen=True, kw_only=True):
    """The pools of a deployment, by how their workers get commands; none named: any will do."""

    by_stream: tuple[str, ...] = ()
    by_http: tuple[str, ...] = ()

    @property
    def pool_names(self) -> tuple[str, ...]:
        """Return every pool's name."""
        return (*self.by_stream, *self.by_http)

    def has_pool(self, pool: str) -> bool:
        """Tell whether commands for a pool have somewhere to go."""
        return not self.pool_names or pool in self.pool_names


class Priority(StrEnum):
    """What workers of a pool take first."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


def build_lane_name(host: str, priority: Priority) -> str:
    """Name the lane of a host's commands: `io-high`, `io`, `io-low`."""
    return host if priority is Priority.NORMAL else f"{host}-{priority}"


def get_lane_host(lane: str) -> str:
    """Name the host of a lane: `io` of `io-high`."""
    return lane.partition("-")[0]


# The lanes of the io host, the most urgent first: the order in which a worker takes from them.
IO_LANES = tuple(build_lane_name(IO_LANE, priority) for priority in Priority)
# Every lane that a pool has.
LANES = (*IO_LANES, SPARK_LANE)


def is_pool_name(name: str) -> bool:
    """Tell whether a text may name a pool: it stands in subjects and in consumers' names."""
    return re.fullmatch(POOL_PATTERN, name) is not None


class WorkerHeartbeat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker of a pool runs so many of the commands that these lanes of it could run.

    Inputs of what it is offered may be `max_distance` away. `store_waits` of its calls wait for the
    payload store, which is away, for the executions `store_waiting`, 50 at most. `takes_offers` is
    false for a worker of some tenants: an offer may be any tenant's. These are its `tenants`, none
    where it serves all. `takes_batches` says that it can run commands for several items.
    `missing_walls` around tasks are not granted by its machine; None: it has tried none yet.
    """

    worker_id: WorkerId
    pool: str
    lanes: tuple[str, ...]
    running: int
    capacity: int
    locality: dict[str, str] = {}
    max_distance: str = placement.ANYWHERE
    store_waits: int = 0
    store_waiting: tuple[ExecutionId, ...] = ()
    takes_offers: bool = True
    tenants: tuple[str, ...] = ()
    takes_batches: bool = False
    missing_walls: tuple[str, ...] | None = None

    @property
    def free_capacity(self) -> int:
        """Return how many commands more it could take."""
        return max(0, self.capacity - self.running)

    def admits_distance(self, rank: int) -> bool:
        """Tell whether inputs so far away may come here; a bound that is unknown bounds nothing."""
        bound = self.max_distance if self.max_distance in DISTANCES else placement.ANYWHERE
        return rank <= placement.rank_distance(bound)


def decode_worker_heartbeat(data: bytes) -> WorkerHeartbeat:
    """Decode what a worker said; raises `MalformedMessage`."""
    if len(data) > BEAT_BYTES_MAX:
        raise MalformedMessage(f"a worker's beat takes more than {BEAT_BYTES_MAX} bytes")
    try:
        return codec.decode_as(data, WorkerHeartbeat)
    except msgspec.DecodeError as failure:
        raise MalformedMessage(f"a worker's beat does not fit its schema: {failure}") from failure


def choose_nearest_worker(
    source: placement.Place, heartbeats: Iterable[WorkerHeartbeat], *, pool: str, lane: str
) -> WorkerId | None:
    """Choose the worker with room that is nearest to a place, of equals the one with most room.

    None when nobody with room is nearer than anywhere and as near as it wants to be, and when all
    of the pool are equally near: then the pool's own queue does as well and costs less.
    """
    candidates = [
        worker_heartbeat
        for worker_heartbeat in heartbeats
        if worker_heartbeat.pool == pool
        and lane in worker_heartbeat.lanes
        and worker_heartbeat.takes_offers
    ]
    ranks = {
        item.worker_id: placement.rank_distance(find_distance(source, item.locality))
        for item in candidates
    }
    if len(set(ranks.values())) < 2:  # noqa: PLR2004 - a choice needs two different ones
        return None
    anywhere_rank = placement.rank_distance(placement.ANYWHERE)
    roomy_workers = [
        item
        for item in candidates
        if item.free_capacity > 0
        and (distance_rank := ranks[item.worker_id]) < anywhere_rank
        and item.admits_distance(distance_rank)
    ]
    best = min(
        roomy_workers,
        key=lambda worker: (ranks[worker.worker_id], -worker.free_capacity, worker.worker_id),
        default=None,
    )
    return None if best is None else best.worker_id
