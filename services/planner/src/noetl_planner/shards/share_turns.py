"""Lets the shares of tenants take turns: of each share a few shards at once.

All shards of a process use one processor and one database. A flood in every shard would otherwise
be many turns beside the single turn of another tenant.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from noetl_contracts.ids import TenantId

# While one turn waits for the database, another one decides.
TURNS_AT_ONCE = 2


class ShareTurns:
    """Counts the turns of each share; without shares nothing waits."""

    def __init__(self, tenants: Collection[str]) -> None:
        self._has_shares = bool(tenants)
        self._places: defaultdict[TenantId | None, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(TURNS_AT_ONCE)
        )

    @asynccontextmanager
    async def take_turn(self, share: TenantId | None) -> AsyncIterator[None]:
        """Wait until the share may take one turn more, and hold its place meanwhile."""
        if not self._has_shares:
            yield
            return
        async with self._places[share]:
            yield
