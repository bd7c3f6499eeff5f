"""Starts new executions in this process when it owns their shard.

The API calls it first. A request that a shard here decides on is committed in one transaction with
the events of its decision. Every other request is committed with a message to the shard's owner.
"""

from typing import Protocol

from noetl_contracts.ids import CatalogId, TenantId
from noetl_contracts.ledger.records import Request
from noetl_planner.facts.share_turns import ShareTurns

_Queue = tuple[int, TenantId | None]


class ExecutionStarter(Protocol):
    """Starts executions of one shard; its planner implements it."""

    async def start_execution(self, request: Request, *, latest: CatalogId | None) -> bool:
        """Commit a new request and its first events; False when it must go by message."""


class LocalStarts:
    """The execution starters of this process; each takes one request at a time.

    There is one for each shard and tenant with a share of its own, and one for the other tenants.
    While a starter is busy, further requests go by message: one turn of the shard then commits
    many of them in one transaction.
    """

    def __init__(self) -> None:
        self._starters: dict[_Queue, ExecutionStarter] = {}
        self._busy: set[_Queue] = set()
        # Those of the process: what is asked for counts like what is decided.
        self.share_turns = ShareTurns()

    def register_starter(
        self, shard: int, starter: ExecutionStarter, share: TenantId | None = None
    ) -> None:
        """Register the starter of a share of a shard that this process owns."""
        self._starters[shard, share] = starter

    def remove_starter(
        self, shard: int, starter: ExecutionStarter, share: TenantId | None = None
    ) -> None:
        """Remove a starter, unless its successor is registered already."""
        if self._starters.get((shard, share)) is starter:
            del self._starters[shard, share]

    async def start_execution(
        self, shard: int, request: Request, *, latest: CatalogId | None = None
    ) -> bool:
        """Start an execution here; False when its request was not committed.

        With `latest`, that playbook must still be the latest of its path at the commit. When the
        ledger does not answer, the request may be committed: its identity makes it count once.
        """
        queue: _Queue = (shard, request.tenant_id)
        if queue not in self._starters:
            queue = (shard, None)
        starter = self._starters.get(queue)
        if starter is None or queue in self._busy:
            return False
        self._busy.add(queue)
        try:
            return await starter.start_execution(request, latest=latest)
        finally:
            self._busy.discard(queue)
