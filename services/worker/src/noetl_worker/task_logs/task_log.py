"""The log of one try of a task: its lines, within their bound, on their way to the journal."""

from collections.abc import Sequence
from typing import Protocol

from noetl_contracts.log_chunks import NOTICE, LogSource
from noetl_worker.task_logs.line_buffer import LineBuffer
from noetl_worker.task_logs.line_text import RawLine

TRY_BYTES_MAX = 10 * 1024 * 1024


class LineStore(Protocol):
    """Takes the lines of all logs of one attempt of a command."""

    def add_lines(
        self, lines: Sequence[RawLine], stream: str, level: str, source: LogSource
    ) -> None:
        """Take lines that have come at once; they are stored soon."""

    async def wait_for_room(self) -> None:
        """Return when more lines may be added."""


class TaskLog:
    """Takes the output of one try of a task; what comes after its bound is counted."""

    def __init__(self, source: LogSource, journal: LineStore) -> None:
        self.source = source
        self._journal = journal
        self._buffer_by_stream: dict[str, LineBuffer] = {}
        self._room_bytes = TRY_BYTES_MAX
        self._left_out_bytes = 0

    def is_cut(self) -> bool:
        """Tell whether nothing more is stored."""
        return self._room_bytes <= 0

    def write(self, stream: str, data: bytes) -> None:
        """Take bytes of a stream; a line is stored when its end has come."""
        if self.is_cut():
            self._left_out_bytes += len(data)
            return
        buffer = self._buffer_by_stream.setdefault(stream, LineBuffer())
        self._add_lines(buffer.feed(data), stream)

    def add_line(self, stream: str, text: str, *, level: str = "") -> None:
        """Take one whole line, as `logging` makes them; of a text with more, all its lines."""
        buffer = LineBuffer()
        data = text.encode(errors="backslashreplace")
        self._add_lines([*buffer.feed(data), *buffer.finish()], stream, level)

    async def wait_for_room(self) -> None:
        """Return when the journal has room again; writers wait meanwhile."""
        if not self.is_cut():
            await self._journal.wait_for_room()

    def finish(self) -> None:
        """Take what came without an end of line, and say what was left out."""
        for stream, buffer in self._buffer_by_stream.items():
            self._add_lines(buffer.finish(), stream)
        self._buffer_by_stream.clear()
        if self._left_out_bytes:
            text = f"the log of this try was cut: {self._left_out_bytes:,} more bytes are left out"
            self._add_notice(text)
            self._left_out_bytes = 0

    def _add_lines(self, lines: list[RawLine], stream: str, level: str = "") -> None:
        size = sum(len(line.data) for line in lines) + len(lines)
        if size < self._room_bytes:
            self._room_bytes -= size
            if lines:
                self._journal.add_lines(lines, stream, level, self.source)
            return
        for line in lines:
            self._add_last(line, stream, level)

    def _add_last(self, line: RawLine, stream: str, level: str) -> None:
        """Take a line of those among which the bound is reached."""
        if self.is_cut():
            self._left_out_bytes += len(line.data) + line.left_out + 1
            return
        self._room_bytes -= len(line.data) + 1
        self._journal.add_lines([line], stream, level, self.source)
        if self.is_cut():
            self._add_notice(
                f"the log of this try is cut here: it holds {TRY_BYTES_MAX:,} bytes at most"
            )

    def _add_notice(self, text: str) -> None:
        line = RawLine(data=text.encode())
        self._journal.add_lines([line], NOTICE, "warning", self.source)
