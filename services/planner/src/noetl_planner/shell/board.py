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
# Whoever asks for an execution and does not follow it at once is looked up like everybody.
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


class Accepted:
    """An execution that this process has promised to run, and its first commit."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.first: Sequence[Envelope] = ()


class Board:
    """Hands the commits of this process's shards to the followers that it has.

    Whoever asks for an execution follows it at once, but its first commit may come before that: it
    is kept for the first who follows.
    """

    def __init__(self) -> None:
        self._feeds: dict[ExecutionId, list[Feed]] = {}
        self._accepted: OrderedDict[ExecutionId, Accepted] = OrderedDict()

    def accept(self, execution_id: ExecutionId, owner: Owner) -> None:
        """Remember whose execution this process is about to promise to run."""
        self._accepted[execution_id] = Accepted(owner)
        while len(self._accepted) > ACCEPTED_MAX:
            self._accepted.popitem(last=False)

    def forget(self, execution_id: ExecutionId) -> None:
        """Forget an execution that was not promised after all."""
        self._accepted.pop(execution_id, None)

    def is_accepted(self, execution_id: str, owner: Owner) -> bool:
        """Tell whether an execution is known to be an owner's; most are not known here."""
        accepted = self._accepted.get(ExecutionId(execution_id))
        return accepted is not None and accepted.owner == owner

    def put(self, execution_id: ExecutionId, envelopes: Sequence[Envelope]) -> None:
        """Show what was committed to whoever follows."""
        feeds = self._feeds.get(execution_id, ())
        for feed in feeds:
            feed.put(envelopes)
        accepted = self._accepted.get(execution_id)
        if accepted is not None and not feeds and envelopes[0].stream_version == 1:
            accepted.first = envelopes

    @asynccontextmanager
    async def follow(self, hints: Hints, execution_id: ExecutionId) -> AsyncIterator[Feed]:
        """Hear of an execution's commits, here and elsewhere, while the block runs."""
        async with hints.watch(subjects.followed(execution_id)) as grown:
            feed = Feed(grown)
            accepted = self._accepted.get(execution_id)
            if accepted is not None and accepted.first:
                feed.put(accepted.first)
                accepted.first = ()
            feeds = self._feeds.setdefault(execution_id, [])
            feeds.append(feed)
            try:
                yield feed
            finally:
                feeds.remove(feed)
                if not feeds:
                    del self._feeds[execution_id]
