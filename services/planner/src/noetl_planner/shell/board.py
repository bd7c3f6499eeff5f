"""What this process has just committed, for those who follow an execution through it.

Nothing depends on it: whoever finds a gap reads the ledger, and so does whoever is woken by another
planner and finds nothing here.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from noetl_contracts import subjects
from noetl_contracts.envelope import Envelope
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_messaging.ports import Hints

# Who is further behind reads on in the ledger.
EVENTS_MAX = 500
# Who waits for an end alone takes what came before it now and then.
PATIENT_EVENTS = 200
# Whoever asks for an execution and does not follow it at once is looked up like everybody.
ACCEPTED_MAX = 256

Owner = tuple[TenantId, OrganizationId]


class Feed:
    """Committed events of one execution, in order, until somebody takes them.

    `hear` begins to listen to other planners, and has them set the event that it is given.
    """

    def __init__(
        self, hear: Callable[[asyncio.Event], Awaitable[None]], *, is_patient: bool
    ) -> None:
        # Set by this process's commits and by other planners' hints.
        self.grown = asyncio.Event()
        self._hear = hear
        self._is_patient = is_patient
        self._is_listening = False
        self._waiting: list[Envelope] = []

    def put(self, envelopes: Sequence[Envelope], *, is_over: bool = False) -> None:
        """Add what was committed; with `is_over` the execution has ended."""
        if len(self._waiting) + len(envelopes) > EVENTS_MAX:
            self._waiting.clear()
        else:
            self._waiting += envelopes
        if is_over or not self._is_patient or len(self._waiting) >= PATIENT_EVENTS:
            self.grown.set()

    async def wait(self, *, within_s: float) -> None:
        """Wait for news; when none come, hear of other planners' commits from then on."""
        try:
            async with asyncio.timeout(within_s):
                await self.grown.wait()
        except TimeoutError:
            await self.listen()

    async def listen(self) -> None:
        """Hear of other planners' commits; those that they made before are in the ledger."""
        if not self._is_listening:
            self._is_listening = True
            await self._hear(self.grown)

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
        self.is_over = False


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

    def put(
        self, execution_id: ExecutionId, envelopes: Sequence[Envelope], *, is_over: bool = False
    ) -> None:
        """Show what was committed to whoever follows; with `is_over` the execution has ended."""
        feeds = self._feeds.get(execution_id, ())
        for feed in feeds:
            feed.put(envelopes, is_over=is_over)
        accepted = self._accepted.get(execution_id)
        if accepted is not None and not feeds and envelopes[0].stream_version == 1:
            accepted.first, accepted.is_over = envelopes, is_over

    @asynccontextmanager
    async def follow(
        self, hints: Hints, execution_id: ExecutionId, *, is_patient: bool = False
    ) -> AsyncIterator[Feed]:
        """Hear of an execution's commits while the block runs, here and elsewhere.

        What has begun here is decided on here, until another planner takes its shard over: others
        are listened to once nothing comes for a while. With `is_patient` nothing but the end, or
        much, counts as news.
        """
        async with AsyncExitStack() as ears:

            async def hear(grown: asyncio.Event) -> None:
                await ears.enter_async_context(hints.watch(subjects.followed(execution_id), grown))

            feed = Feed(hear, is_patient=is_patient)
            accepted = self._accepted.get(execution_id)
            if accepted is not None and accepted.first:
                feed.put(accepted.first, is_over=accepted.is_over)
                accepted.first = ()
            else:
                await feed.listen()
            feeds = self._feeds.setdefault(execution_id, [])
            feeds.append(feed)
            try:
                yield feed
            finally:
                feeds.remove(feed)
                if not feeds:
                    del self._feeds[execution_id]
