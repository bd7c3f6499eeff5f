"""Where the doors hand new executions to the shards that this process owns.

A request that is decided on here is committed in one transaction with the events that follow from
it. Every other request is committed with its message, which is sent to the owner of the shard.
"""

from typing import Protocol

from noetl_contracts.ids import CatalogId
from noetl_contracts.ledger.records import Request


class ExecutionStarter(Protocol):
    """What begins the executions of one shard."""

    async def start_execution(self, request: Request, *, latest: CatalogId | None) -> bool:
        """Decide on a request that nobody has kept; False when it is to be sent instead."""


class LocalStarts:
    """One beginner a shard; each takes one request at a time.

    While it decides on one, others are kept and sent: a turn takes many of those at once, in one
    transaction.
    """

    def __init__(self) -> None:
        self._beginner_by_shard: dict[int, ExecutionStarter] = {}
        self._busy: set[int] = set()

    def register_starter(self, shard: int, beginner: ExecutionStarter) -> None:
        """Let a shard's owner take requests."""
        self._beginner_by_shard[shard] = beginner

    def remove_starter(self, shard: int, beginner: ExecutionStarter) -> None:
        """Let an owner leave; its successor, which may be here already, stays."""
        if self._beginner_by_shard.get(shard) is beginner:
            del self._beginner_by_shard[shard]

    async def start_execution(
        self, shard: int, request: Request, *, latest: CatalogId | None = None
    ) -> bool:
        """Have an execution begin here, its request kept; False when neither has happened.

        With `latest` that playbook must still be the latest of its path when it does. Where the
        ledger did not answer it may have happened: the request's identity makes it count once.
        """
        beginner = self._beginner_by_shard.get(shard)
        if beginner is None or shard in self._busy:
            return False
        self._busy.add(shard)
        try:
            return await beginner.start_execution(request, latest=latest)
        finally:
            self._busy.discard(shard)
