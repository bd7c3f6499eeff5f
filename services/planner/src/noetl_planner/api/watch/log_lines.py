"""Lines of logs as they are shown, and the place of a reader among them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from noetl_contracts.ids import ExecutionId
from noetl_contracts.log_chunks import (
    NOTICE,
    LogChunk,
    LogChunkName,
    LogLine,
    build_chunk_prefix,
    parse_chunk_name,
)
from noetl_planner.api.http.problems import build_bad_request_error
from noetl_planner.api.watch.log_chunks import ReadChunk
from noetl_planner.api.watch.log_filter import ALL_LINES, LogFilter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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


class LogCursor(Struct, frozen=True, kw_only=True):
    """A place in the logs of an execution: so many lines of a chunk were read."""

    name: LogChunkName
    lines: int

    def __str__(self) -> str:
        place = "/".join(self.name.name.split("/")[2:])
        return f"{place}@{self.lines}"


def parse_cursor(execution_id: ExecutionId, text: str | None) -> LogCursor | None:
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


def list_lines_of(log_chunk: ReadChunk) -> Sequence[LogLine]:
    """Return the lines of a chunk; there are none of one that cannot be read."""
    return () if log_chunk.chunk is None else log_chunk.chunk.lines


def view_lines(log_chunk: ReadChunk, wanted: LogFilter = ALL_LINES) -> list[LogLineView]:
    """Return the lines of a chunk that are wanted, as they are shown."""
    chunk = log_chunk.chunk
    if chunk is None:
        return []
    return [
        view_line(log_chunk.name, chunk, number)
        for number, line in enumerate(chunk.lines)
        if wanted.covers_line(line)
    ]


def view_line(name: LogChunkName, chunk: LogChunk, number: int) -> LogLineView:
    """Show one line of a chunk."""
    line = chunk.lines[number]
    source = chunk.sources[line.source]
    return LogLineView(
        log=_build_log_name(name),
        sequence=chunk.first + number,
        at=_EPOCH + timedelta(microseconds=line.at_us),
        step=chunk.step,
        task=source.task,
        unit=source.unit,
        frame_id=source.frame_id,
        row_index=source.row_index,
        attempt=chunk.attempt,
        task_attempt=source.task_attempt,
        worker_id=chunk.worker_id,
        stream=line.stream,
        level=line.level,
        text=line.text,
    )


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
