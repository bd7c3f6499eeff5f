"""Cuts a stream of bytes into lines; a line without an end takes a bounded room."""

from collections.abc import Iterator

from noetl_worker.task_logs.line_text import RAW_BYTES_MAX, RawLine


class LineBuffer:
    """The beginning of a line whose end has not come yet."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._left_out = 0

    def feed(self, data: bytes | memoryview) -> Iterator[RawLine]:
        """Take more bytes; yield the lines that they end."""
        *ended, rest = bytes(data).split(b"\n")
        for piece in ended:
            yield self._end(piece)
        self._keep(rest)

    def finish(self) -> Iterator[RawLine]:
        """Yield what came without an end of line."""
        if self._head or self._left_out:
            yield self._end(b"")

    def _end(self, piece: bytes) -> RawLine:
        self._keep(piece)
        line = RawLine(data=bytes(self._head), left_out=self._left_out)
        self._head.clear()
        self._left_out = 0
        return line

    def _keep(self, piece: bytes) -> None:
        room = RAW_BYTES_MAX - len(self._head)
        self._head += piece[:room]
        self._left_out += max(0, len(piece) - room)
