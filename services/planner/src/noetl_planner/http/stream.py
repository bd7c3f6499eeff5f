"""Live follow: an execution's events as they are committed, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter, QueryParameter, SkipValidation
from litestar.response import ServerSentEventMessage, Stream

from noetl_chassis import redaction
from noetl_contracts import codec
from noetl_contracts.envelope import Envelope
from noetl_contracts.errors import Retryable
from noetl_contracts.events import event_type, find_class
from noetl_contracts.events.execution import (
    ExecutionCancelled,
    PlaybookCompleted,
    PlaybookFailed,
)
from noetl_contracts.ids import ExecutionId
from noetl_planner.http import finding, views
from noetl_planner.http.problems import ApiError, refused
from noetl_planner.http.services import ApiServices, Services
from noetl_planner.shell.board import Feed

PAGE_EVENTS = 500
POLL_FIRST_S = 0.1
POLL_MAX_S = 1.0
# A client that hears nothing for several of these knows that the connection is gone.
HEARTBEAT_S = 1.0
TYPES_MAX = 100
END = "end"
# Neither a client nor a proxy on the way may keep or gather what is to arrive at once.
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

Terminal = PlaybookCompleted | PlaybookFailed | ExecutionCancelled


class Follower:
    """Follows one execution for one client; at most a page is held, and one that waits here.

    With `types` the client gets events of these types, and the end.
    """

    def __init__(
        self,
        services: ApiServices,
        execution_id: ExecutionId,
        *,
        after: int,
        is_over: bool,
        types: frozenset[str] = frozenset(),
    ) -> None:
        self._services = services
        self._execution_id = execution_id
        self._after = after
        self._types = types
        # A client may ask for what follows the end: then there is nothing to wait for.
        self._is_over = is_over

    async def pages(self) -> AsyncIterator[list[ServerSentEventMessage]]:
        """Yield events in order, heartbeats between them, and one last message after the end."""
        services = self._services
        try:
            async with services.board.follow(services.hints, self._execution_id) as feed:
                ending = asyncio.ensure_future(services.stop.wait())
                ending.add_done_callback(lambda _: feed.grown.set())
                try:
                    async for page in self._pages(feed):
                        yield page
                finally:
                    ending.cancel()
        except Retryable:
            # The client resumes after the last event that it has seen.
            return

    async def _pages(self, feed: Feed) -> AsyncIterator[list[ServerSentEventMessage]]:
        poll_s, silent_s = POLL_FIRST_S, 0.0
        while not self._services.stop.is_set():
            feed.grown.clear()
            page = await self._next_page(feed)
            wanted = [one for one in page if self._is_wanted(one)]
            if wanted:
                silent_s = 0.0
                yield [_message(envelope) for envelope in wanted]
            if len(page) == PAGE_EVENTS:
                continue
            if self._is_over:
                yield [ServerSentEventMessage(event=END, data="{}", id=self._after)]
                return
            if page:
                poll_s = POLL_FIRST_S
            await _grown(feed, within_s=poll_s)
            silent_s += poll_s
            poll_s = min(poll_s * 2, POLL_MAX_S)
            if silent_s >= HEARTBEAT_S:
                silent_s = 0.0
                yield [_heartbeat()]

    def _is_wanted(self, envelope: Envelope) -> bool:
        return not self._types or event_type(envelope.event) in self._types

    async def _next_page(self, feed: Feed) -> list[Envelope]:
        """Return what this process has committed meanwhile, else what the ledger has."""
        page = feed.take(after=self._after, events_max=PAGE_EVENTS)
        page = page or await self._services.ledger.read(
            self._execution_id, after_version=self._after, events_max=PAGE_EVENTS
        )
        if page:
            self._after = page[-1].stream_version
            self._is_over = self._is_over or any(isinstance(one.event, Terminal) for one in page)
        return page


async def _grown(feed: Feed, *, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            await feed.grown.wait()
    except TimeoutError:
        return


class Seats:
    """How many clients follow at the moment."""

    def __init__(self) -> None:
        self._taken = 0

    async def hold(
        self, pages: AsyncIterator[list[ServerSentEventMessage]]
    ) -> AsyncIterator[bytes]:
        """Keep a seat for as long as a client listens; a page is sent as one chunk."""
        self._taken += 1
        try:
            async for page in pages:
                yield b"".join(message.encode() for message in page)
        finally:
            self._taken -= 1

    def check(self, seats_max: int) -> None:
        """Refuse one client too many."""
        if self._taken >= seats_max:
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                code="too_many_streams",
                detail=f"{seats_max} clients follow executions already",
                hint="poll GET /api/executions/{id}/events?after= instead",
            )


@get("/executions/{execution_id:str}/stream", tags=["executions"])
async def follow(
    services: Services,
    seats: NamedDependency[SkipValidation[Seats]],
    execution_id: FromPath[str],
    after: Annotated[int | None, QueryParameter(ge=0)] = None,
    wanted: Annotated[
        list[str] | None, QueryParameter(name="event_type", max_items=TYPES_MAX)
    ] = None,
    last_event_id: Annotated[int | None, HeaderParameter(name="Last-Event-ID", ge=0)] = None,
) -> Stream:
    """Follow an execution from a version on to its end: all its events, or those of some types."""
    types = _known(wanted or [])
    begin = last_event_id if last_event_id is not None else after or 0
    owner = (services.tenant_id, services.organization_id)
    is_over = False
    # Who follows from the beginning sees the end when it is there.
    if begin or not services.board.is_accepted(execution_id, owner):
        row = await finding.get_row(services, execution_id)
        execution_id, is_over = row["execution_id"], views.is_terminal(row)
    seats.check(services.streams_max)
    follower = Follower(
        services, ExecutionId(execution_id), after=begin, is_over=is_over, types=types
    )
    return Stream(
        seats.hold(follower.pages()), media_type="text/event-stream", headers=STREAM_HEADERS
    )


def _known(types: list[str]) -> frozenset[str]:
    unknown = sorted(one for one in types if find_class(one) is None)
    if unknown:
        raise refused(
            f"no event is of type {unknown[0]!r}", hint="noetl schema lists the types of events"
        )
    return frozenset(types)


def _message(envelope: Envelope) -> ServerSentEventMessage:
    view = views.event_view(envelope)
    return ServerSentEventMessage(
        data=redaction.unsealed(codec.text(view)), event=view.event_type, id=view.version
    )


def _heartbeat() -> ServerSentEventMessage:
    return ServerSentEventMessage(data=None, comment="alive")


ROUTES = [follow]
