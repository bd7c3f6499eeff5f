"""One execution's history as it is committed, for whoever waits for it here."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager

from noetl_contracts.envelope import Envelope
from noetl_contracts.events.execution import (
    ExecutionCancelled,
    PlaybookCompleted,
    PlaybookFailed,
)
from noetl_contracts.ids import ExecutionId
from noetl_contracts.status import ExecutionStatus
from noetl_planner.http.services import ApiServices
from noetl_planner.shell.board import Feed

PAGE_EVENTS = 500
POLL_FIRST_S = 0.1
POLL_MAX_S = 1.0

STATUS_BY_END = {
    PlaybookCompleted: ExecutionStatus.COMPLETED,
    PlaybookFailed: ExecutionStatus.FAILED,
    ExecutionCancelled: ExecutionStatus.CANCELLED,
}


class Following:
    """Reads on in a history until its end; at most a page is held, and one that waits here.

    What follows `after` is read; with `is_over` the end was seen before, and nothing is waited for.
    With `is_new` there is nothing yet that the ledger could be asked for; with `is_patient` what
    comes before the end may come late.
    """

    def __init__(
        self,
        services: ApiServices,
        execution_id: ExecutionId,
        *,
        after: int = 0,
        is_over: bool = False,
        is_new: bool = False,
        is_patient: bool = False,
    ) -> None:
        self._services = services
        self._execution_id = execution_id
        self.after = after
        self.is_over = is_over
        self._is_new = is_new
        self._is_patient = is_patient
        # The event that ended the execution, once it was read.
        self.end: Envelope | None = None

    async def pages(self) -> AsyncGenerator[list[Envelope]]:
        """Yield what was committed, in order, or nothing now and then; until it is over.

        Ends early when the process does. Raises `Retryable` when the ledger cannot be read.
        """
        services = self._services
        board, hints = services.board, services.hints
        async with board.follow(hints, self._execution_id, is_patient=self._is_patient) as feed:
            ending = asyncio.ensure_future(services.stop.wait())
            ending.add_done_callback(lambda _: feed.grown.set())
            try:
                async for page in self._pages(feed):
                    yield page
            finally:
                ending.cancel()

    async def _pages(self, feed: Feed) -> AsyncIterator[list[Envelope]]:
        poll_s = POLL_FIRST_S
        if self._is_new:
            await feed.wait(within_s=poll_s)
        while not self._services.stop.is_set():
            feed.grown.clear()
            page = await self._next_page(feed)
            yield page
            if len(page) == PAGE_EVENTS:
                continue
            if self.is_over:
                return
            if page:
                poll_s = POLL_FIRST_S
            await feed.wait(within_s=poll_s)
            poll_s = min(poll_s * 2, POLL_MAX_S)

    async def _next_page(self, feed: Feed) -> list[Envelope]:
        """Return what this process has committed meanwhile, else what the ledger has."""
        page = feed.take(after=self.after, events_max=PAGE_EVENTS)
        page = page or await self._services.ledger.read(
            self._execution_id, after_version=self.after, events_max=PAGE_EVENTS
        )
        if page:
            self.after = page[-1].stream_version
            ends = (one for one in page if type(one.event) in STATUS_BY_END)
            self.end = next(ends, self.end)
            self.is_over = self.is_over or self.end is not None
        return page


class Seats:
    """How many clients follow at the moment."""

    def __init__(self) -> None:
        self._taken = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Keep a seat for as long as the block runs."""
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1

    def has_room(self, seats_max: int) -> bool:
        """Tell whether one more client may follow."""
        return self._taken < seats_max
