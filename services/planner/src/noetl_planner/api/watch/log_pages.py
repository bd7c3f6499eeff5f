"""Pages of an execution's log lines: each reads a bounded part of the logs, and says how much.

Chunks are listed, read and looked through a few at a time, so that the cost of a page does not
grow with the log before or behind it, and no more than a few chunks are in memory.
"""

from contextlib import aclosing

from msgspec import Struct

from noetl_contracts.ids import ExecutionId
from noetl_planner.api.watch.log_chunks import LogChunks, ReadChunk
from noetl_planner.api.watch.log_filter import LogFilter
from noetl_planner.api.watch.log_lines import (
    LogCursor,
    LogLineView,
    list_lines_of,
    view_line,
    view_problem,
)

# A page ends before so much text is shown, or was looked through, with the chunk that reaches it.
_SHOWN_BYTES_MAX = 4 * 1024 * 1024
_READ_BYTES_MAX = 32 * 1024 * 1024
_CHUNKS_MAX = 2000


class LogPage(Struct, frozen=True, kw_only=True):
    """Lines in the order in which they were stored; `next_after` continues behind them.

    `lines_read` were looked through for them: a page of a search may hold none, and have more
    behind it. `note` says why there are none at all.
    """

    execution_id: ExecutionId
    lines: list[LogLineView]
    next_after: str
    has_more: bool
    lines_read: int = 0
    note: str = ""


class LogPageReader:
    """Gathers one page of the lines that are wanted."""

    def __init__(self, chunks: LogChunks, wanted: LogFilter, *, limit: int) -> None:
        self._chunks = chunks
        self._wanted = wanted
        self._limit = limit
        self._lines: list[LogLineView] = []
        self._shown_bytes = 0
        self._read_bytes = 0
        self._lines_read = 0
        self._chunks_read = 0

    async def read_page(self, execution_id: ExecutionId, cursor: LogCursor | None) -> LogPage:
        """Read on from a place, or from the beginning."""
        has_more = False
        async with aclosing(
            self._chunks.read_chunks(cursor.name if cursor else None)
        ) as log_chunks:
            async for log_chunk in log_chunks:
                has_more = self._is_full()
                if has_more:
                    break
                is_known = cursor is not None and cursor.name == log_chunk.name
                end = self._take_lines(log_chunk, cursor.lines if cursor and is_known else 0)
                cursor = LogCursor(name=log_chunk.name, lines=end)
                has_more = end < len(list_lines_of(log_chunk))
                if has_more:
                    break
        return LogPage(
            execution_id=execution_id,
            lines=self._lines,
            next_after=str(cursor or ""),
            has_more=has_more,
            lines_read=self._lines_read,
        )

    def _is_full(self) -> bool:
        return (
            len(self._lines) >= self._limit
            or self._shown_bytes >= _SHOWN_BYTES_MAX
            or self._read_bytes >= _READ_BYTES_MAX
            or self._chunks_read >= _CHUNKS_MAX
        )

    def _take_lines(self, log_chunk: ReadChunk, skipped: int) -> int:
        """Take the lines that are wanted; return how many of the chunk are behind the reader."""
        self._chunks_read += 1
        room = self._limit - len(self._lines)
        if not skipped:
            # What is not whole is said to everybody, also to who looks for another line.
            self._lines += view_problem(log_chunk)
        chunk = log_chunk.chunk
        if chunk is None:
            # The notice in its place counts as read.
            return 1
        for number, line in enumerate(chunk.lines[skipped:], start=skipped):
            if room == 0:
                return number
            self._lines_read += 1
            self._read_bytes += len(line.text)
            if self._wanted.covers_line(line):
                room -= 1
                self._lines.append(view_line(log_chunk.name, chunk, number))
                self._shown_bytes += len(line.text)
        return len(chunk.lines)
