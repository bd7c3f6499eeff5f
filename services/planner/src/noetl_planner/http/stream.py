"""Live follow: an execution's events as they are committed, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, AsyncExitStack, aclosing
from http import HTTPStatus
from typing import Annotated

from litestar import get
from litestar.params import FromPath, HeaderParameter, QueryParameter
from litestar.response import ServerSentEventMessage, Stream

from noetl_chassis import redaction
from noetl_contracts import codec
from noetl_contracts.envelope import Envelope
from noetl_contracts.errors import Retryable
from noetl_contracts.events import event_type, find_class
from noetl_contracts.ids import ExecutionId
from noetl_contracts.step_progress import StepProgress
from noetl_messaging.ports import Hints
from noetl_planner.http import finding, views
from noetl_planner.http.following import Following
from noetl_planner.http.problems import NUMBER_MAX, AnyRequest, ApiError, address_of, refused
from noetl_planner.http.progress import LatestProgress, hear_progress
from noetl_planner.http.services import ApiServices, Services

# A client that hears nothing for several of these knows that the connection is gone.
HEARTBEAT_S = 1.0
TYPES_MAX = 100
END = "end"
PROGRESS = "progress"
# Neither a client nor a proxy on the way may keep or gather what is to arrive at once.
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Follower:
    """Shows one client what is followed.

    With `types` the client gets events of these types, and the end; with `hints` also the progress
    of tasks that is told there.
    """

    def __init__(
        self,
        following: Following,
        *,
        types: frozenset[str] = frozenset(),
        hints: Hints | None = None,
    ) -> None:
        self._following = following
        self._types = types
        self._hints = hints

    async def pages(self) -> AsyncIterator[list[ServerSentEventMessage]]:
        """Yield events in order, heartbeats between them, and one last message after the end."""
        following = self._following
        heard_at = _now()
        try:
            async with AsyncExitStack() as stack:
                progress = LatestProgress()
                if self._hints is not None:
                    hearing = hear_progress(self._hints, following.execution_id)
                    progress = await stack.enter_async_context(hearing)
                pages = await stack.enter_async_context(aclosing(following.pages()))
                async for page in pages:
                    messages = [_message(one) for one in page if self._is_wanted(one)]
                    messages += map(_progress_message, progress.take())
                    if messages:
                        yield messages
                    elif _now() - heard_at >= HEARTBEAT_S:
                        yield [heartbeat()]
                    else:
                        continue
                    heard_at = _now()
        except Retryable:
            # The client resumes after the last event that it has seen.
            return
        if following.is_over:
            yield [ServerSentEventMessage(event=END, data="{}", id=following.after)]

    def _is_wanted(self, envelope: Envelope) -> bool:
        return not self._types or event_type(envelope.event) in self._types


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
    types = _known(wanted or [])
    begin = last_event_id if last_event_id is not None else after or 0
    owner = (services.tenant_id, services.organization_id)
    is_over = False
    # Who follows from the beginning sees the end when it is there.
    if begin or not services.board.is_accepted(execution_id, owner):
        row = await finding.get_row(services, execution_id)
        execution_id, is_over = row["execution_id"], views.is_terminal(row)
    client = address_of(request)
    check_seats(services, client, execution_id)
    following = Following(services, ExecutionId(execution_id), after=begin, is_over=is_over)
    hints = services.hints if has_progress else None
    pages = Follower(following, types=types, hints=hints).pages()
    return Stream(
        send_pages(pages, services.seats.taken(client, execution_id)),
        media_type="text/event-stream",
        headers=STREAM_HEADERS,
    )


async def send_pages(
    pages: AsyncIterator[list[ServerSentEventMessage]], seat: AbstractContextManager[None]
) -> AsyncIterator[bytes]:
    """Keep a seat for as long as a client listens; a page is sent as one chunk."""
    with seat:
        async for page in pages:
            yield b"".join(message.encode() for message in page)


def check_seats(services: ApiServices, client: str, execution_id: str) -> None:
    """Refuse one follower too many: of all, of this client, or of this execution."""
    seats, most = services.seats, services.seat_limits
    if not seats.has_room(most):
        raise _too_many(
            HTTPStatus.SERVICE_UNAVAILABLE, f"{most.all} clients follow executions already"
        )
    if not seats.client_has_room(client, most):
        raise _too_many(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"this client's address follows {most.client} executions already, which is its share",
        )
    if not seats.execution_has_room(execution_id, most):
        raise _too_many(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"{most.execution} clients follow execution {execution_id} already, which is its share",
        )


def _too_many(status: HTTPStatus, detail: str) -> ApiError:
    return ApiError(
        status,
        code="too_many_streams",
        detail=detail,
        hint="end a stream, or read events page by page: noetl events ID --since VERSION",
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


def _progress_message(progress: StepProgress) -> ServerSentEventMessage:
    return ServerSentEventMessage(data=codec.text(progress), event=PROGRESS)


def heartbeat() -> ServerSentEventMessage:
    """Say that the connection lives."""
    return ServerSentEventMessage(data=None, comment="alive")


def _now() -> float:
    return asyncio.get_running_loop().time()


ROUTES = [follow]
