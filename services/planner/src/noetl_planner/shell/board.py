"""What this process has just committed, for those who follow an execution through it.

Nothing depends on it: whoever finds a gap reads the ledger, and so does whoever is woken by another
planner and finds nothing here.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from noetl_contracts import subjects
from noetl_contracts.envelope import Envelope
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_messaging.ports import Hints

# Who is further behind reads on in the ledger.
EVENTS_MAX = 500
# Whoever asks for an execution follows it at once, or is looked up like everybody.
ACCEPTED_MAX = 256

Owner = tuple[TenantId, OrganizationId]


class Feed:
    """Committed events of one execution, in order, until somebody takes them."""

    def __init__(self, grown: asyncio.Event) -> None:
        # Set by this process's commits and by other planners' hints.
        self.grown = grown
        self._waiting: list[Envelope] = []

    def put(self, envelopes: Sequence[Envelope]) -> None:
        """Add what was committed."""
        if len(self._waiting) + len(envelopes) > EVENTS_MAX:
            self._waiting.clear()
        else:
            self._waiting += envelopes
        self.grown.set()

    def take(self, *, after: int, events_max: int) -> list[Envelope]:
        """Take out what follows a version without a gap; nothing where the ledger must be asked."""
        fresh = [one for one in self._waiting if one.stream_version > after]
        if not fresh or fresh[0].stream_version != after + 1:
            self._waiting.clear()
            return []
        last = fresh[-1].stream_version
        if last - after != len(fresh):
            # Another planner had the shard in between.
            self._waiting.clear()
            return []
        self._waiting = fresh[events_max:]
        return fresh[:events_max]


class Board:
    """Hands the commits of this process's shards to the followers that it has."""

    def __init__(self) -> None:
        self._feeds: dict[ExecutionId, list[Feed]] = {}
        self._owner_by_accepted: OrderedDict[ExecutionId, Owner] = OrderedDict()

    def accept(self, execution_id: ExecutionId, owner: Owner) -> None:
        """Remember whose execution this process has just promised to run."""
        self._owner_by_accepted[execution_id] = owner
        while len(self._owner_by_accepted) > ACCEPTED_MAX:
            self._owner_by_accepted.popitem(last=False)

    def is_accepted(self, execution_id: str, owner: Owner) -> bool:
        """Tell whether an execution is known to be an owner's; most are not known here."""
        return self._owner_by_accepted.get(ExecutionId(execution_id)) == owner

    def put(self, execution_id: ExecutionId, envelopes: Sequence[Envelope]) -> None:
        """Show what was committed to whoever follows."""
        for feed in self._feeds.get(execution_id, ()):
            feed.put(envelopes)

    @asynccontextmanager
    async def follow(self, hints: Hints, execution_id: ExecutionId) -> AsyncIterator[Feed]:
        """Hear of an execution's commits, here and elsewhere, while the block runs."""
        async with hints.watch(subjects.followed(execution_id)) as grown:
            feed = Feed(grown)
            feeds = self._feeds.setdefault(execution_id, [])
            feeds.append(feed)
            try:
                yield feed
            finally:
                feeds.remove(feed)
                if not feeds:
                    del self._feeds[execution_id]
