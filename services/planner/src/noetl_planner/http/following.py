"""One execution's history as it is committed, for whoever waits for it here."""

from collections.abc import AsyncGenerator, AsyncIterator

from noetl_contracts.envelope import Envelope
from noetl_contracts.events.execution import ExecutionEnd
from noetl_contracts.ids import ExecutionId
from noetl_planner.http.services import ApiServices
from noetl_planner.shell.board import Ears, Feed

PAGE_EVENTS = 500
POLL_FIRST_S = 0.1
POLL_MAX_S = 1.0


class Following:
    """Reads on in a history until its end; at most a page is held, and one that waits here.

    What follows `after` is read; with `is_over` the end was seen before, and nothing is waited for.
    """

    def __init__(
        self,
        services: ApiServices,
        execution_id: ExecutionId,
        *,
        after: int = 0,
        is_over: bool = False,
    ) -> None:
        self._services = services
        self.execution_id = execution_id
        self.after = after
        self.is_over = is_over

    async def pages(self) -> AsyncGenerator[list[Envelope]]:
        """Yield what was committed, in order, or nothing now and then; until it is over.

        Ends early when the process does. Raises `Retryable` when the ledger cannot be read.
        """
        services = self._services
        feed = Feed()
        async with services.board.follow(services.hints, self.execution_id, feed) as ears:
            async for page in self._pages(feed, ears):
                yield page

    async def _pages(self, feed: Feed, ears: Ears) -> AsyncIterator[list[Envelope]]:
        poll_s = POLL_FIRST_S
        while not self._services.stop.is_set():
            feed.news.clear()
            page = await self._next_page(feed)
            yield page
            if len(page) == PAGE_EVENTS:
                continue
            if self.is_over:
                return
            if page:
                poll_s = POLL_FIRST_S
            await ears.wait(within_s=poll_s)
            poll_s = min(poll_s * 2, POLL_MAX_S)

    async def _next_page(self, feed: Feed) -> list[Envelope]:
        """Return what this process has committed meanwhile, else what the ledger has."""
        page = feed.take(after=self.after, events_max=PAGE_EVENTS)
        page = page or await self._services.ledger.read(
            self.execution_id, after_version=self.after, events_max=PAGE_EVENTS
        )
        if page:
            self.after = page[-1].stream_version
            self.is_over = self.is_over or any(isinstance(one.event, ExecutionEnd) for one in page)
        return page
