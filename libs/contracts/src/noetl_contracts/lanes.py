"""Where a command waits: the pool that serves it, and the lane by host and priority."""

import re
from enum import StrEnum

from msgspec import Struct

from noetl_contracts.commands import IO_LANE, SPARK_LANE

POOL_CHARACTERS_MAX = 32
POOL_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9_-]{{0,{POOL_CHARACTERS_MAX - 1}}}$"
POOL_HINT = f"use 1 to {POOL_CHARACTERS_MAX} letters, digits, '_' or '-', a letter or digit first"


class Pools(Struct, frozen=True, kw_only=True):
    """The pools of a deployment, by how their workers get commands; none named: any will do."""

    by_stream: tuple[str, ...] = ()
    by_http: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return every pool's name."""
        return (*self.by_stream, *self.by_http)

    def has(self, pool: str) -> bool:
        """Tell whether commands for a pool have somewhere to go."""
        return not self.names or pool in self.names


class Priority(StrEnum):
    """What workers of a pool take first."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


def lane_of(host: str, priority: Priority) -> str:
    """Name the lane of a host's commands: `io-high`, `io`, `io-low`."""
    return host if priority is Priority.NORMAL else f"{host}-{priority}"


def host_of(lane: str) -> str:
    """Name the host of a lane: `io` of `io-high`."""
    return lane.partition("-")[0]


# The lanes of the io host, the most urgent first: the order in which a worker takes from them.
IO_LANES = tuple(lane_of(IO_LANE, priority) for priority in Priority)
# Every lane that a pool has.
LANES = (*IO_LANES, SPARK_LANE)


def is_pool(name: str) -> bool:
    """Tell whether a text may name a pool: it stands in subjects and in consumers' names."""
    return re.fullmatch(POOL_PATTERN, name) is not None
