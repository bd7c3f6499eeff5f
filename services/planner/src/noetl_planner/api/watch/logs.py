"""What the tasks of an execution wrote: page by page, or as it comes."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Annotated

from litestar import get
from litestar.params import FromPath, FromQuery, HeaderParameter, QueryParameter
from litestar.response import ServerSentEventMessage, Stream
from msgspec import structs

from noetl_chassis import redaction
from noetl_contracts import codec
from noetl_contracts.errors import Retryable
from noetl_contracts.ids import ExecutionId
from noetl_planner.api.http.problems import NUMBER_MAX, AnyRequest, get_client_address
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup
from noetl_planner.api.lookup.views import Row
from noetl_planner.api.watch import log_chunks, log_lines
from noetl_planner.api.watch.event_stream import (
    END,
    STREAM_HEADERS,
    build_heartbeat,
    stream_pages,
    take_follower_seat,
)
from noetl_planner.api.watch.log_chunks import LogChunks, LogFollower, ReadChunk
from noetl_planner.api.watch.log_filter import TEXT_LENGTH_MAX, LogFilter, LogStream
from noetl_planner.api.watch.log_lines import LogCursor
from noetl_planner.api.watch.log_pages import LogPage, LogPageReader
from noetl_planner.api.watch.stream_access import StreamAccess

LINES_MAX = 10_000
LINES = "lines"
_CURSOR_LENGTH_MAX = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Step = FromQuery[str | None]
Attempt = Annotated[int | None, QueryParameter(ge=0, le=NUMBER_MAX)]
OneStream = FromQuery[LogStream | None]
Text = Annotated[str | None, QueryParameter(max_length=TEXT_LENGTH_MAX)]
After = Annotated[str | None, QueryParameter(max_length=_CURSOR_LENGTH_MAX)]


@get("/executions/{execution_id:str}/logs", tags=["executions"])
async def list_lines(  # noqa: PLR0913, PLR0917 - one for each parameter of the address
    services: Services,
    execution_id: FromPath[str],
    step: Step = None,
    attempt: Attempt = None,
    stream: OneStream = None,
    text: Text = None,
    after: After = None,
    limit: Annotated[int, QueryParameter(ge=1, le=LINES_MAX)] = 1000,
    version: Annotated[int | None, QueryParameter(ge=1, le=NUMBER_MAX)] = None,
) -> LogPage:
    """List lines that tasks wrote, all or those with a text; 404 for a step that there is not.

    With a `version` those that had been written when it happened.
    """
    row, cursor = await _find_place(services, execution_id, after, step)
    checked_id = ExecutionId(row["execution_id"])
    until_us = None
    if version is not None:
        happened_at = await execution_lookup.get_version_time(services, checked_id, version)
        until_us = (happened_at - _EPOCH) // timedelta(microseconds=1)
    wanted = LogFilter(step=step, attempt=attempt, stream=stream, text=text, until_us=until_us)
    reader = LogPageReader(LogChunks(services, checked_id, wanted=wanted), wanted, limit=limit)
    page = await reader.read_page(checked_id, cursor)
    if page.next_after:
        return page
    return structs.replace(page, note=await log_chunks.explain_absence(services, row, wanted))


async def _find_place(
    services: ApiServices, execution_id: str, after: str | None, step: str | None
) -> tuple[Row, LogCursor | None]:
    """Return the execution's row and the place to read on from; raises a 400 or a 404."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    checked_id = ExecutionId(row["execution_id"])
    cursor = log_lines.parse_cursor(checked_id, after)
    if step is not None and cursor is None:
        await execution_lookup.check_step_name(
            services, checked_id, path=row["path"], version=row.get("catalog_version"), step=step
        )
    return row, cursor


@get("/executions/{execution_id:str}/logs/stream", tags=["executions"])
async def follow_lines(  # noqa: PLR0913, PLR0917 - one for each parameter of the address
    services: Services,
    request: AnyRequest,
    execution_id: FromPath[str],
    step: Step = None,
    attempt: Attempt = None,
    stream: OneStream = None,
    text: Text = None,
    after: After = None,
    last_event_id: Annotated[
        str | None, HeaderParameter(name="Last-Event-ID", max_length=_CURSOR_LENGTH_MAX)
    ] = None,
) -> Stream:
    """Follow the lines of an execution to its end, a message for each chunk.

    Who connects again may get lines of the last minutes once more.
    """
    wanted = LogFilter(step=step, attempt=attempt, stream=stream, text=text)
    row, cursor = await _find_place(services, execution_id, last_event_id or after, step)
    checked_id = ExecutionId(row["execution_id"])
    client = get_client_address(request)
    seat = take_follower_seat(services.admission, client, checked_id)
    follower = LogFollower(
        LogChunks(services, checked_id, wanted=wanted),
        services,
        after=None if cursor is None else cursor.name,
    )
    return Stream(
        stream_pages(
            _iterate_messages(follower, wanted),
            seat,
            StreamAccess(request.scope, services, checked_id),
        ),
        media_type="text/event-stream",
        headers=STREAM_HEADERS,
    )


async def _iterate_messages(
    follower: LogFollower, wanted: LogFilter
) -> AsyncIterator[list[ServerSentEventMessage]]:
    try:
        async for log_chunk in follower.read_chunks():
            yield [
                build_heartbeat() if log_chunk is None else _build_chunk_message(log_chunk, wanted)
            ]
    except Retryable:
        # The client goes on after the last chunk that it has seen.
        return
    yield [ServerSentEventMessage(event=END, data="{}")]


def _build_chunk_message(log_chunk: ReadChunk, wanted: LogFilter) -> ServerSentEventMessage:
    lines = log_lines.view_problem(log_chunk) + log_lines.view_lines(log_chunk, wanted)
    end = len(log_lines.list_lines_of(log_chunk))
    return ServerSentEventMessage(
        event=LINES,
        id=str(LogCursor(name=log_chunk.name, lines=end)),
        data=redaction.mask_sealed_values(codec.encode_text({"lines": lines})),
    )


ROUTES = [list_lines, follow_lines]
