"""What workers say of themselves: where they are and what they could still take."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from noetl_contracts import codec, placement
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import WorkerId
from noetl_contracts.locators import DISTANCES, distance

BEAT_BYTES_MAX = 4096
# How often a worker speaks, and after which silence it counts as gone.
BEAT_S = 5.0
SILENT_S = 3 * BEAT_S


class WorkerBeat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker of a pool runs so many of the commands that these lanes of it could run.

    Inputs of what it is offered may be `max_distance` away. `store_waits` of its calls wait for the
    payload store, which is away.
    """

    worker_id: WorkerId
    pool: str
    lanes: tuple[str, ...]
    running: int
    capacity: int
    locality: dict[str, str] = {}
    max_distance: str = placement.ANYWHERE
    store_waits: int = 0

    @property
    def free(self) -> int:
        """Return how many commands more it could take."""
        return max(0, self.capacity - self.running)

    def admits(self, rank: int) -> bool:
        """Tell whether inputs so far away may come here; a bound that is unknown bounds nothing."""
        bound = self.max_distance if self.max_distance in DISTANCES else placement.ANYWHERE
        return rank <= placement.rank(bound)


def decode_beat(data: bytes) -> WorkerBeat:
    """Decode what a worker said; raises `MalformedMessage`."""
    if len(data) > BEAT_BYTES_MAX:
        raise MalformedMessage(f"a worker's beat takes more than {BEAT_BYTES_MAX} bytes")
    try:
        return codec.decode_as(data, WorkerBeat)
    except msgspec.DecodeError as failure:
        raise MalformedMessage(f"a worker's beat does not fit its schema: {failure}") from failure


def nearest(
    source: placement.Place, seen: Iterable[WorkerBeat], *, pool: str, lane: str
) -> WorkerId | None:
    """Choose the worker with room that is nearest to a place, of equals the one with most room.

    None when nobody with room is nearer than anywhere and as near as it wants to be, and when all
    of the pool are equally near: then the pool's own queue does as well and costs less.
    """
    there = [one for one in seen if one.pool == pool and lane in one.lanes]
    ranks = {one.worker_id: placement.rank(distance(source, one.locality)) for one in there}
    if len(set(ranks.values())) < 2:  # noqa: PLR2004 - a choice needs two different ones
        return None
    far = placement.rank(placement.ANYWHERE)
    roomy = [
        one
        for one in there
        if one.free > 0 and (away := ranks[one.worker_id]) < far and one.admits(away)
    ]
    best = min(
        roomy, key=lambda one: (ranks[one.worker_id], -one.free, one.worker_id), default=None
    )
    return None if best is None else best.worker_id
