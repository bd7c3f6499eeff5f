"""Server-sent events of one execution: its committed history, and the progress of its tasks."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from http import HTTPStatus
from typing import Annotated

from litestar import get
from litestar.params import FromPath, HeaderParameter, QueryParameter
from litestar.response import ServerSentEventMessage, Stream

from noetl_chassis import redaction
from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import StepProgress
from noetl_contracts.errors import Retryable
from noetl_contracts.events import find_event_class, get_event_type
from noetl_contracts.events.execution_events import ExecutionEnd
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_messaging.streams.ports import Hints
from noetl_planner.api.http.limiters import FollowerSeat
from noetl_planner.api.http.problems import (
    NUMBER_MAX,
    AnyRequest,
    ApiError,
    build_bad_request_error,
    get_client_address,
)
from noetl_planner.api.http.service_groups import AdmissionLimits
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup, hidden_values, views
from noetl_planner.api.watch.progress_hints import LatestProgress, listen_to_progress
from noetl_planner.api.watch.stream_access import StreamAccess
from noetl_planner.shards.commit_feed import CommitListener, EventFeed

PAGE_EVENTS = 500
POLL_FIRST_S = 0.1
POLL_MAX_S = 1.0


class HistoryFollower:
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

    async def iterate_pages(self) -> AsyncGenerator[list[Envelope]]:
        """Yield what was committed, in order, or nothing now and then; until it is over.

        Ends early when the process does. Raises `Retryable` when the ledger cannot be read.
        """
        services = self._services
        feed = EventFeed()
        async with services.shards.commit_feed.follow_execution(
            services.messages.hints, self.execution_id, feed
        ) as listener:
            async for page in self._iterate_pages(feed, listener):
                yield page

    async def _iterate_pages(
        self, feed: EventFeed, listener: CommitListener
    ) -> AsyncIterator[list[Envelope]]:
        poll_s = POLL_FIRST_S
        while not self._services.stop.is_set():
            feed.commit_signal.clear()
            page = await self._read_next_page(feed)
            yield page
            if len(page) == PAGE_EVENTS:
                continue
            if self.is_over:
                return
            if page:
                poll_s = POLL_FIRST_S
            await listener.wait_for_commit(within_s=poll_s)
            poll_s = min(poll_s * 2, POLL_MAX_S)

    async def _read_next_page(self, feed: EventFeed) -> list[Envelope]:
        """Return what this process has committed meanwhile, else what the ledger has."""
        page = feed.take_events(after=self.after, events_max=PAGE_EVENTS)
        page = page or await self._services.history.ledger.read_events(
            self.execution_id, after_version=self.after, events_max=PAGE_EVENTS
        )
        if page:
            self.after = page[-1].stream_version
            self.is_over = self.is_over or any(
                isinstance(envelope.event, ExecutionEnd) for envelope in page
            )
        return page


# A client that hears nothing for several of these knows that the connection is gone.
HEARTBEAT_S = 1.0
TYPES_MAX = 100
END = "end"
PROGRESS = "progress"
# Neither a client nor a proxy on the way may keep or gather what is to arrive at once.
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream:
    """Shows one client what is followed.

    With `types` the client gets events of these types, and the end; with `hints` also the progress
    of tasks that is told there. Without `has_values` events come without the data in them.
    """

    def __init__(
        self,
        following: HistoryFollower,
        *,
        types: frozenset[str] = frozenset(),
        hints: Hints | None = None,
        has_values: bool = True,
    ) -> None:
        self._following = following
        self._types = types
        self._hints = hints
        self._has_values = has_values

    async def iterate_messages(self) -> AsyncIterator[list[ServerSentEventMessage]]:
        """Yield events in order, heartbeats between them, and one last message after the end."""
        following = self._following
        heard_at = _get_loop_time_s()
        try:
            async with AsyncExitStack() as stack:
                progress = LatestProgress()
                if self._hints is not None:
                    hearing = listen_to_progress(self._hints, following.execution_id)
                    progress = await stack.enter_async_context(hearing)
                pages = await stack.enter_async_context(aclosing(following.iterate_pages()))
                async for page in pages:
                    messages = self._build_messages(page)
                    messages += map(build_progress_message, progress.take_latest())
                    if messages:
                        yield messages
                    elif _get_loop_time_s() - heard_at >= HEARTBEAT_S:
                        yield [build_heartbeat()]
                    else:
                        continue
                    heard_at = _get_loop_time_s()
        except Retryable:
            # The client resumes after the last event that it has seen.
            return
        if following.is_over:
            yield [ServerSentEventMessage(event=END, data="{}", id=following.after)]

    def _build_messages(self, page: list[Envelope]) -> list[ServerSentEventMessage]:
        return [
            _build_event_message(envelope, has_values=self._has_values)
            for envelope in page
            if self._is_wanted(envelope)
        ]

    def _is_wanted(self, envelope: Envelope) -> bool:
        return not self._types or get_event_type(envelope.event) in self._types


@get("/executions/{execution_id:str}/stream", tags=["executions"])
async def follow(
    services: Services,
    request: AnyRequest,
    execution_id: FromPath[str],
    after: Annotated[int | None, QueryParameter(ge=0, le=NUMBER_MAX)] = None,
    wanted: Annotated[
        list[str] | None, QueryParameter(name="event_type", max_items=TYPES_MAX)
    ] = None,
    has_progress: Annotated[bool | None, QueryParameter(name="progress")] = None,
    last_event_id: Annotated[
        int | None, HeaderParameter(name="Last-Event-ID", ge=0, le=NUMBER_MAX)
    ] = None,
) -> Stream:
    """Follow an execution from a version on to its end: all its events, or those of some types.

    With `progress=true` messages of the type `progress` tell how far its Spark jobs are; they are
    no events, have no id, and nobody keeps them.
    """
    types = _check_event_types(wanted or [])
    begin = last_event_id if last_event_id is not None else after or 0
    owner = (services.tenant_id, services.organization_id)
    is_over = False
    # Who follows from the beginning sees the end when it is there. Where roles hold for some
    # folders its playbook has to be looked at.
    is_checked = bool(begin or services.path_prefixes)
    if is_checked or not services.shards.commit_feed.is_accepted(execution_id, owner):
        row = await execution_lookup.get_execution_row(services, execution_id)
        execution_id, is_over = row["execution_id"], views.is_terminal(row)
    client = get_client_address(request)
    seat = take_follower_seat(services.admission, client, execution_id)
    following = HistoryFollower(services, ExecutionId(execution_id), after=begin, is_over=is_over)
    hints = services.messages.hints if has_progress else None
    has_values = await hidden_values.may_read_values(services, following.execution_id)
    pages = EventStream(
        following,
        types=types,
        hints=hints,
        has_values=has_values,
    ).iterate_messages()
    return Stream(
        stream_pages(
            pages,
            seat,
            StreamAccess(request.scope, services, ExecutionId(execution_id)),
        ),
        media_type="text/event-stream",
        headers=STREAM_HEADERS,
    )


def stream_pages(
    pages: AsyncIterator[list[ServerSentEventMessage]],
    seat: FollowerSeat,
    access: StreamAccess,
) -> AsyncIterator[bytes]:
    """Send a page as one chunk; see `stream_parts`."""
    parts = (b"".join(message.encode() for message in page) async for page in pages)
    return stream_parts(parts, seat, access)


async def stream_parts(
    parts: AsyncGenerator[bytes], seat: FollowerSeat, access: StreamAccess
) -> AsyncIterator[bytes]:
    """Keep a seat for as long as a client listens and may."""
    with seat:
        async with aclosing(parts):
            async for part in parts:
                if not await access.is_open():
                    return
                yield part


def take_follower_seat(admission: AdmissionLimits, client: str, execution_id: str) -> FollowerSeat:
    """Take a place at once, so that of many requests together none too many is admitted.

    Raises an `ApiError` for one too many: of all, of this client, or of this execution.
    """
    seats, most = admission.follower_limiter, admission.follower_limits
    if not seats.has_seat(most):
        raise _build_too_many_followers_error(
            HTTPStatus.SERVICE_UNAVAILABLE, f"{most.all} clients follow executions already"
        )
    if not seats.has_client_seat(client, most):
        raise _build_too_many_followers_error(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"this client's address follows {most.client} executions already, which is its share",
        )
    if not seats.has_execution_seat(execution_id, most):
        raise _build_too_many_followers_error(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"{most.execution} clients follow execution {execution_id} already, which is its share",
        )
    return seats.hold_seat(client, execution_id)


def _build_too_many_followers_error(status: HTTPStatus, detail: str) -> ApiError:
    return ApiError(
        status,
        code="too_many_streams",
        detail=detail,
        hint="end a stream, or read events page by page: noetl events ID --since VERSION",
    )


def _check_event_types(types: list[str]) -> frozenset[str]:
    unknown = sorted(item for item in types if find_event_class(item) is None)
    if unknown:
        raise build_bad_request_error(
            f"no event is of type {unknown[0]!r}", hint="noetl schema lists the types of events"
        )
    return frozenset(types)


def _build_event_message(envelope: Envelope, *, has_values: bool) -> ServerSentEventMessage:
    view = views.view_event(envelope)
    if not has_values:
        view = hidden_values.hide_values(view)
    return ServerSentEventMessage(
        data=redaction.mask_sealed_values(codec.encode_text(view)),
        event=view.event_type,
        id=view.version,
    )


def build_progress_message(progress: StepProgress) -> ServerSentEventMessage:
    """Tell how far a task is."""
    return ServerSentEventMessage(data=codec.encode_text(progress), event=PROGRESS)


def build_heartbeat() -> ServerSentEventMessage:
    """Say that the connection lives."""
    return ServerSentEventMessage(data=None, comment="alive")


def _get_loop_time_s() -> float:
    return asyncio.get_running_loop().time()


ROUTES = [follow]
