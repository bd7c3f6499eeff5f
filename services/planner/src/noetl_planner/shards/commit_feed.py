"""Feeds events that this process has committed to followers of their executions.

Nothing depends on it: a follower that finds a gap reads the ledger, and so does one that another
planner wakes and that finds nothing here.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime

from msgspec import structs

from noetl_contracts import subjects
from noetl_contracts.events.execution_events import ExecutionEnd
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.envelope import Envelope
from noetl_messaging.streams.ports import Hints

# Who is further behind reads on in the ledger.
EVENTS_MAX = 500
# Accepted executions whose first commit is kept for a follower; others are read from the ledger.
ACCEPTED_MAX = 256

Owner = tuple[TenantId, OrganizationId]


class EventFeed:
    """Committed events of one execution, in order, until somebody takes them."""

    def __init__(self) -> None:
        # Set by this process's commits, by its end, and by other planners' hints.
        self.commit_signal = asyncio.Event()
        self._waiting: list[Envelope] = []

    def put_events(self, envelopes: Sequence[Envelope]) -> None:
        """Add what was committed."""
        if len(self._waiting) + len(envelopes) > EVENTS_MAX:
            self._waiting.clear()
        else:
            self._waiting += envelopes
        self.commit_signal.set()

    def take_events(self, *, after: int, events_max: int) -> list[Envelope]:
        """Take out what follows a version without a gap; nothing where the ledger must be asked."""
        fresh = [envelope for envelope in self._waiting if envelope.stream_version > after]
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


class EndFeed:
    """The end of one execution, for who waits for nothing else."""

    def __init__(self) -> None:
        # Set by the end alone when it comes here, by the process's own, by other planners' hints.
        self.commit_signal = asyncio.Event()
        self.end: Envelope | None = None

    def put_events(self, envelopes: Sequence[Envelope]) -> None:
        """Look for the end in what was committed: it is among the last events."""
        ends = (
            envelope for envelope in reversed(envelopes) if isinstance(envelope.event, ExecutionEnd)
        )
        self.end = next(ends, self.end)
        if self.end is not None:
            self.commit_signal.set()


class CommitFlag:
    """Tells that something was committed, for who looks elsewhere at what that is."""

    def __init__(self) -> None:
        self.commit_signal = asyncio.Event()

    def put_events(self, _: Sequence[Envelope]) -> None:
        """Tell of what was committed."""
        self.commit_signal.set()


CommittedFeed = EventFeed | EndFeed | CommitFlag


class CommitListener:
    """Waits for commits of an execution: this process's, and other planners' where none come.

    `subscribe` begins to listen to other planners, who set the event from then on.
    """

    def __init__(
        self, commit_signal: asyncio.Event, subscribe: Callable[[], Awaitable[None]]
    ) -> None:
        self._commit_signal = commit_signal
        self._subscribe = subscribe
        self._is_listening = False

    async def wait_for_commit(self, *, within_s: float) -> None:
        """Wait for a commit; when none comes, receive other planners' hints from then on."""
        try:
            async with asyncio.timeout(within_s):
                await self._commit_signal.wait()
        except TimeoutError:
            await self.subscribe_other_planners()

    async def subscribe_other_planners(self) -> None:
        """Receive hints of other planners' commits; earlier commits are in the ledger.

        The claim API's watch calls it at once, for the shard may be another planner's.
        """
        if not self._is_listening:
            self._is_listening = True
            await self._subscribe()


class AcceptedExecution:
    """An execution that this process has promised to run, and its first commit."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.first: Sequence[Envelope] = ()


class CommitFeed:
    """Hands the commits of this process's shards to the followers that it has.

    A client that starts an execution follows it at once, but the first commit may come before that:
    it is kept for the first follower.
    """

    def __init__(self) -> None:
        self._feeds: dict[ExecutionId, list[CommittedFeed]] = {}
        self._accepted: OrderedDict[ExecutionId, AcceptedExecution] = OrderedDict()

    def accept_execution(self, execution_id: ExecutionId, owner: Owner) -> None:
        """Remember whose execution this process is about to promise to run."""
        self._accepted[execution_id] = AcceptedExecution(owner)
        while len(self._accepted) > ACCEPTED_MAX:
            self._accepted.popitem(last=False)

    def forget_execution(self, execution_id: ExecutionId) -> None:
        """Forget an execution that was not promised after all."""
        self._accepted.pop(execution_id, None)

    def is_accepted(self, execution_id: str, owner: Owner) -> bool:
        """Tell whether an execution is known to be an owner's; most are not known here."""
        accepted = self._accepted.get(ExecutionId(execution_id))
        return accepted is not None and accepted.owner == owner

    def put_commits(
        self, execution_id: ExecutionId, envelopes: Sequence[Envelope], ingest_time: datetime
    ) -> None:
        """Pass the events of one commit to the followers of the execution."""
        feeds = self._feeds.get(execution_id, ())
        accepted = self._accepted.get(execution_id)
        is_first = accepted is not None and not feeds and envelopes[0].stream_version == 1
        if not feeds and not is_first:
            return
        events = [structs.replace(envelope, ingest_time=ingest_time) for envelope in envelopes]
        for feed in feeds:
            feed.put_events(events)
        if accepted is not None and is_first:
            accepted.first = events

    def wake_followers(self) -> None:
        """Have every follower look again: whether its process is told to stop."""
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.commit_signal.set()

    @asynccontextmanager
    async def follow_execution(
        self, hints: Hints, execution_id: ExecutionId, feed: CommittedFeed
    ) -> AsyncIterator[CommitListener]:
        """Have a feed filled while the block runs, and hear of commits elsewhere.

        What has begun here is decided on here, until another planner takes its shard over: others
        are listened to once nothing comes for a while.
        """
        async with AsyncExitStack() as listening:

            async def start_listening() -> None:
                others = hints.watch_hints(
                    subjects.build_growth_hint(execution_id), feed.commit_signal
                )
                await listening.enter_async_context(others)

            listener = CommitListener(feed.commit_signal, start_listening)
            accepted = self._accepted.get(execution_id)
            if accepted is not None and accepted.first:
                feed.put_events(accepted.first)
                accepted.first = ()
            else:
                await listener.subscribe_other_planners()
            feeds = self._feeds.setdefault(execution_id, [])
            feeds.append(feed)
            try:
                yield listener
            finally:
                feeds.remove(feed)
                if not feeds:
                    del self._feeds[execution_id]
