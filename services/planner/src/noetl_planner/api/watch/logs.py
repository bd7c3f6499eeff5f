"""What the tasks of an execution wrote: page by page, or as it comes."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Annotated

from litestar import get
from litestar.params import FromPath, FromQuery, HeaderParameter, QueryParameter
from litestar.response import ServerSentEventMessage, Stream
from msgspec import Struct

from noetl_chassis import redaction
from noetl_contracts import codec
from noetl_contracts.errors import Retryable
from noetl_contracts.ids import ExecutionId
from noetl_contracts.log_chunks import (
    NOTICE,
    LogChunkName,
    LogLine,
    build_chunk_prefix,
    parse_chunk_name,
)
from noetl_planner.api.http.problems import AnyRequest, build_bad_request_error, get_client_address
from noetl_planner.api.http.services import Services
from noetl_planner.api.lookup import execution_lookup
from noetl_planner.api.watch import log_chunks
from noetl_planner.api.watch.event_stream import (
    END,
    STREAM_HEADERS,
    build_heartbeat,
    stream_pages,
    take_follower_seat,
)
from noetl_planner.api.watch.log_chunks import LogChunks, LogFollower, ReadChunk
from noetl_planner.api.watch.stream_access import StreamAccess

LINES_MAX = 10_000
LINES = "lines"
_CURSOR_LENGTH_MAX = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A page ends before so much text, with the chunk that reaches it.
_PAGE_BYTES_MAX = 4 * 1024 * 1024


class LogLineView(Struct, frozen=True, kw_only=True):
    """One line; `log` and `sequence` together name it, and `sequence` counts within its log.

    `stream` is stdout, stderr, logging, or notice for what the worker says of the log itself.
    """

    log: str
    sequence: int
    at: datetime
    step: str
    task: str
    unit: str
    frame_id: str | None
    row_index: int | None
    attempt: int
    task_attempt: int
    worker_id: str
    stream: str
    level: str
    text: str


class LogPage(Struct, frozen=True, kw_only=True):
    """Lines in the order in which they were stored; `next_after` continues behind them.

    `note` says why there are none at all.
    """

    execution_id: ExecutionId
    lines: list[LogLineView]
    next_after: str
    has_more: bool
    note: str = ""


class LogCursor(Struct, frozen=True, kw_only=True):
    """A place in the logs of an execution: so many lines of a chunk were read."""

    name: LogChunkName
    lines: int

    def __str__(self) -> str:
        place = "/".join(self.name.name.split("/")[2:])
        return f"{place}@{self.lines}"


Step = FromQuery[str | None]
After = Annotated[str | None, QueryParameter(max_length=_CURSOR_LENGTH_MAX)]


@get("/executions/{execution_id:str}/logs", tags=["executions"])
async def list_lines(
    services: Services,
    execution_id: FromPath[str],
    step: Step = None,
    after: After = None,
    limit: Annotated[int, QueryParameter(ge=1, le=LINES_MAX)] = 1000,
) -> LogPage:
    """List lines that tasks wrote, of all steps or of one; 404 for a step that there is not."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    checked_id = ExecutionId(row["execution_id"])
    cursor = _parse_cursor(checked_id, after)
    if step is not None and cursor is None:
        await execution_lookup.check_step_name(
            services, checked_id, path=row["path"], version=row.get("catalog_version"), step=step
        )
    chunks = LogChunks(services, checked_id, step=step)
    names = await chunks.list_names()
    note = "" if names else await log_chunks.explain_absence(services, row, step)
    if cursor is not None:
        names = [name for name in names if name.name >= cursor.name.name]
    lines: list[LogLineView] = []
    text_bytes = 0
    while names and len(lines) < limit and text_bytes < _PAGE_BYTES_MAX:
        skipped = cursor.lines if cursor is not None and cursor.name == names[0] else 0
        log_chunk = await chunks.read_chunk(names[0])
        chunk_lines = view_lines(log_chunk)
        page_lines = chunk_lines[skipped : skipped + limit - len(lines)]
        lines += ([] if skipped else view_problem(log_chunk)) + page_lines
        text_bytes += sum(len(line.text) for line in page_lines)
        cursor = LogCursor(name=names[0], lines=skipped + len(page_lines))
        if cursor.lines < len(chunk_lines):
            break
        names = names[1:]
    return LogPage(
        execution_id=checked_id,
        lines=lines,
        next_after=str(cursor or ""),
        has_more=bool(names),
        note=note,
    )


@get("/executions/{execution_id:str}/logs/stream", tags=["executions"])
async def follow_lines(
    services: Services,
    request: AnyRequest,
    execution_id: FromPath[str],
    step: Step = None,
    after: After = None,
    last_event_id: Annotated[
        str | None, HeaderParameter(name="Last-Event-ID", max_length=_CURSOR_LENGTH_MAX)
    ] = None,
) -> Stream:
    """Follow the lines of an execution to its end, a message for each chunk.

    Who connects again may get lines of the last minutes once more.
    """
    row = await execution_lookup.get_execution_row(services, execution_id)
    checked_id = ExecutionId(row["execution_id"])
    cursor = _parse_cursor(checked_id, last_event_id or after)
    if step is not None and cursor is None:
        await execution_lookup.check_step_name(
            services, checked_id, path=row["path"], version=row.get("catalog_version"), step=step
        )
    client = get_client_address(request)
    seat = take_follower_seat(services.admission, client, checked_id)
    follower = LogFollower(
        LogChunks(services, checked_id, step=step),
        services,
        after=None if cursor is None else cursor.name,
    )
    return Stream(
        stream_pages(
            _iterate_messages(follower),
            seat,
            StreamAccess(request.scope, services, checked_id),
        ),
        media_type="text/event-stream",
        headers=STREAM_HEADERS,
    )


async def _iterate_messages(follower: LogFollower) -> AsyncIterator[list[ServerSentEventMessage]]:
    try:
        async for log_chunk in follower.read_chunks():
            yield [build_heartbeat() if log_chunk is None else _build_chunk_message(log_chunk)]
    except Retryable:
        # The client goes on after the last chunk that it has seen.
        return
    yield [ServerSentEventMessage(event=END, data="{}")]


def _build_chunk_message(log_chunk: ReadChunk) -> ServerSentEventMessage:
    lines = view_lines(log_chunk)
    return ServerSentEventMessage(
        event=LINES,
        id=str(LogCursor(name=log_chunk.name, lines=len(lines))),
        data=redaction.mask_sealed_values(
            codec.encode_text({"lines": view_problem(log_chunk) + lines})
        ),
    )


def view_lines(log_chunk: ReadChunk) -> list[LogLineView]:
    """Return the lines of a chunk as they are shown."""
    chunk = log_chunk.chunk
    if chunk is None:
        return []
    return [
        LogLineView(
            log=_build_log_name(log_chunk.name),
            sequence=chunk.first + number,
            at=_compute_line_time(line),
            step=chunk.step,
            task=chunk.sources[line.source].task,
            unit=chunk.sources[line.source].unit,
            frame_id=chunk.sources[line.source].frame_id,
            row_index=chunk.sources[line.source].row_index,
            attempt=chunk.attempt,
            task_attempt=chunk.sources[line.source].task_attempt,
            worker_id=chunk.worker_id,
            stream=line.stream,
            level=line.level,
            text=line.text,
        )
        for number, line in enumerate(chunk.lines)
    ]


def view_problem(log_chunk: ReadChunk) -> list[LogLineView]:
    """Say in its place that a log is not whole; nothing when it is."""
    if not log_chunk.problem:
        return []
    name, chunk = log_chunk.name, log_chunk.chunk
    return [
        LogLineView(
            log=_build_log_name(name),
            sequence=0,
            at=name.minute,
            step="" if chunk is None else chunk.step,
            task="",
            unit="",
            frame_id=None,
            row_index=None,
            attempt=name.attempt,
            task_attempt=0,
            worker_id="" if chunk is None else chunk.worker_id,
            stream=NOTICE,
            level="error",
            text=log_chunk.problem,
        )
    ]


def _build_log_name(name: LogChunkName) -> str:
    return f"{name.command_id}.{name.attempt}.{name.writer}"


def _compute_line_time(line: LogLine) -> datetime:
    return _EPOCH + timedelta(microseconds=line.at_us)


def _parse_cursor(execution_id: ExecutionId, text: str | None) -> LogCursor | None:
    """Read a place that a page or message named; raises a 400."""
    if not text:
        return None
    place, _, lines = text.partition("@")
    name = parse_chunk_name(build_chunk_prefix(execution_id) + place)
    if name is None or not (lines.isascii() and lines.isdigit()):
        raise build_bad_request_error(
            f"{text[:80]!r} is no place in the logs of an execution",
            hint="give the next_after of a page, or the id of the last message of the stream",
        )
    return LogCursor(name=name, lines=int(lines))


ROUTES = [list_lines, follow_lines]
