"""Starts new executions in this process when it owns their shard.

The API calls it first. A request that a shard here decides on is committed in one transaction with
the events of its decision. Every other request is committed with a message to the shard's owner.
"""

from typing import Protocol

from noetl_contracts.ids import CatalogId
from noetl_contracts.ledger.records import Request


class ExecutionStarter(Protocol):
    """Starts executions of one shard; its planner implements it."""

    async def start_execution(self, request: Request, *, latest: CatalogId | None) -> bool:
        """Commit a new request and its first events; False when it must go by message."""


class LocalStarts:
    """The execution starters of this process, one a shard; each takes one request at a time.

    While a starter is busy, further requests go by message: one turn of the shard then commits
    many of them in one transaction.
    """

    def __init__(self) -> None:
        self._starter_by_shard: dict[int, ExecutionStarter] = {}
        self._busy: set[int] = set()

    def register_starter(self, shard: int, starter: ExecutionStarter) -> None:
        """Register the starter of a shard that this process owns."""
        self._starter_by_shard[shard] = starter

    def remove_starter(self, shard: int, starter: ExecutionStarter) -> None:
        """Remove the starter of a shard, unless its successor is registered already."""
        if self._starter_by_shard.get(shard) is starter:
            del self._starter_by_shard[shard]

    async def start_execution(
        self, shard: int, request: Request, *, latest: CatalogId | None = None
    ) -> bool:
        """Start an execution here; False when its request was not committed.

        With `latest`, that playbook must still be the latest of its path at the commit. When the
        ledger does not answer, the request may be committed: its identity makes it count once.
        """
        starter = self._starter_by_shard.get(shard)
        if starter is None or shard in self._busy:
            return False
        self._busy.add(shard)
        try:
            return await starter.start_execution(request, latest=latest)
        finally:
            self._busy.discard(shard)
