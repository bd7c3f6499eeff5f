"""The node number under which a reaper mints execution ids."""

from collections.abc import Callable

from noetl_chassis.clock import Clock
from noetl_chassis.identity import SnowflakeIds
from noetl_storage.ports.ledger_ports import Instances

KIND = "reaper"


class NodeLease:
    """Mints execution ids under a node number that is leased anew before each use.

    A process has one: two that mint under the same number mint the same ids.
    """

    def __init__(self, instances: Instances, *, owner: str, lease_s: float, clock: Clock) -> None:
        self._instances = instances
        self._owner = owner
        self._lease_s = lease_s
        self._clock = clock
        self._node: int | None = None
        self._snowflake: SnowflakeIds | None = None

    async def lease_node(self) -> Callable[[], str]:
        """Extend the lease on the number, or take another one; return what mints with it."""
        node = await self._instances.register_instance(
            instance=self._owner, kind=KIND, lease_s=self._lease_s
        )
        if self._snowflake is None or node != self._node:
            self._node, self._snowflake = node, SnowflakeIds(node=node, clock=self._clock)
        return self._snowflake.next_id
