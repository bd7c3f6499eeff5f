"""Cuts a stream of bytes into lines; a line without an end takes a bounded room."""

from noetl_worker.task_logs.line_text import RAW_BYTES_MAX, RawLine


class LineBuffer:
    """The beginning of a line whose end has not come yet."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._left_out = 0

    def feed(self, data: bytes) -> list[RawLine]:
        """Take more bytes; return the lines that they end."""
        *ended, rest = data.split(b"\n")
        lines = [self._end(ended.pop(0))] if ended and self._has_begun() else []
        lines += [
            RawLine(data=piece) if len(piece) <= RAW_BYTES_MAX else self._end(piece)
            for piece in ended
        ]
        self._keep(rest)
        return lines

    def finish(self) -> list[RawLine]:
        """Return what came without an end of line."""
        return [self._end(b"")] if self._has_begun() else []

    def _has_begun(self) -> bool:
        return bool(self._head or self._left_out)

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
