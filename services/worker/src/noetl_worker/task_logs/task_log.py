"""The log of one try of a task: its lines, within their bound, on their way to the journal."""

from typing import Protocol

from noetl_contracts.log_chunks import NOTICE, LogSource
from noetl_worker.task_logs.line_buffer import LineBuffer
from noetl_worker.task_logs.line_text import RawLine

TRY_BYTES_MAX = 10 * 1024 * 1024


class LineStore(Protocol):
    """Takes the lines of all logs of one attempt of a command."""

    def add(self, line: RawLine, stream: str, level: str, source: LogSource) -> None:
        """Take a line; it is stored soon."""

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
        for line in buffer.feed(data):
            self._add(line, stream)

    def add_line(self, stream: str, text: str, *, level: str = "") -> None:
        """Take one whole line, as `logging` makes them; of a text with more, all its lines."""
        buffer = LineBuffer()
        data = text.encode(errors="backslashreplace")
        for line in (*buffer.feed(data), *buffer.finish()):
            self._add(line, stream, level)

    async def wait_for_room(self) -> None:
        """Return when the journal has room again; whoever writes waits meanwhile."""
        if not self.is_cut():
            await self._journal.wait_for_room()

    def finish(self) -> None:
        """Take what came without an end of line, and say what was left out."""
        for stream, buffer in self._buffer_by_stream.items():
            for line in buffer.finish():
                self._add(line, stream)
        self._buffer_by_stream.clear()
        if self._left_out_bytes:
            text = f"the log of this try was cut: {self._left_out_bytes:,} more bytes are left out"
            self._journal.add(RawLine(data=text.encode()), NOTICE, "warning", self.source)
            self._left_out_bytes = 0

    def _add(self, line: RawLine, stream: str, level: str = "") -> None:
        if self.is_cut():
            self._left_out_bytes += len(line.data) + line.left_out + 1
            return
        self._room_bytes -= len(line.data) + 1
        self._journal.add(line, stream, level, self.source)
        if self.is_cut():
            text = f"the log of this try is cut here: it holds {TRY_BYTES_MAX:,} bytes at most"
            self._journal.add(RawLine(data=text.encode()), NOTICE, "warning", self.source)
