"""The log of one try of a task: its lines, within their bound, on their way to the journal."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from noetl_contracts.log_chunks import NOTICE, LogSource
from noetl_worker.domain.secret_mask import SecretMask

TRY_BYTES_MAX = 10 * 1024 * 1024
LINE_CHARACTERS_MAX = 16 * 1024
RAW_BYTES_MAX = 64 * 1024


class LineStore(Protocol):
    """Takes the lines of all logs of one attempt of a command."""

    def add_lines(
        self, lines: "Sequence[RawLine]", stream: str, level: str, source: LogSource
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

    def write_output(self, stream: str, data: bytes) -> None:
        """Take bytes of a stream; a line is stored when its end has come."""
        if self.is_cut():
            self._left_out_bytes += len(data)
            return
        buffer = self._buffer_by_stream.setdefault(stream, LineBuffer())
        self._add_lines(buffer.feed_bytes(data), stream)

    def add_line(self, stream: str, text: str, *, level: str = "") -> None:
        """Take one whole line, as `logging` makes them; of a text with more, all its lines."""
        buffer = LineBuffer()
        data = text.encode(errors="backslashreplace")
        self._add_lines([*buffer.feed_bytes(data), *buffer.take_rest()], stream, level)

    async def wait_for_room(self) -> None:
        """Return when the journal has room again; writers wait meanwhile."""
        if not self.is_cut():
            await self._journal.wait_for_room()

    def finish_lines(self) -> None:
        """Take what came without an end of line, and say what was left out."""
        for stream, buffer in self._buffer_by_stream.items():
            self._add_lines(buffer.take_rest(), stream)
        self._buffer_by_stream.clear()
        if self._left_out_bytes:
            text = f"the log of this try was cut: {self._left_out_bytes:,} more bytes are left out"
            self._add_notice(text)
            self._left_out_bytes = 0

    def _add_lines(self, lines: "list[RawLine]", stream: str, level: str = "") -> None:
        size = sum(len(line.data) for line in lines) + len(lines)
        if size < self._room_bytes:
            self._room_bytes -= size
            if lines:
                self._journal.add_lines(lines, stream, level, self.source)
            return
        for line in lines:
            self._add_last(line, stream, level)

    def _add_last(self, line: "RawLine", stream: str, level: str) -> None:
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


class TaskLogPort(Protocol):
    """Where a task's output goes, line by line."""

    def write_output(self, stream: str, data: bytes) -> None:
        """Take bytes of a stream; a line is stored when its end has come."""

    def add_line(self, stream: str, text: str, *, level: str = "") -> None:
        """Take one whole line."""

    async def wait_for_room(self) -> None:
        """Return when more may be written."""

    def finish_lines(self) -> None:
        """Take what came without an end of line."""


class NullTaskLog:
    """Drops the output of calls that nobody keeps a log of."""

    def write_output(self, stream: str, data: bytes) -> None:
        """Drop it."""

    def add_line(self, stream: str, text: str, *, level: str = "") -> None:
        """Drop it."""

    async def wait_for_room(self) -> None:
        """Return at once."""

    def finish_lines(self) -> None:
        """Do nothing."""


class RawLine(Struct, frozen=True, kw_only=True):
    """A line as it was written, and how many bytes of it were not held."""

    data: bytes
    left_out: int = 0


def build_line_texts(lines: "Sequence[RawLine]", mask: SecretMask) -> list[str]:
    """Return the texts of lines, without secrets and within their bound; a cut is said in them.

    All lines are looked at together first: most hold no secret, and are not looked at again.
    """
    texts = [line.data.decode(errors="replace") for line in lines]
    if mask.may_change_lines("\n".join(texts)):
        texts = [mask.mask_line(text) for text in texts]
    return [_bound_text(text, line, mask) for text, line in zip(texts, lines, strict=True)]


def _bound_text(masked: str, line: RawLine, mask: SecretMask) -> str:
    if line.left_out:
        masked = masked[: max(0, len(masked) - mask.form_length_max)]
    elif len(masked) <= LINE_CHARACTERS_MAX:
        return masked.removesuffix("\r")
    cut_text = masked[:LINE_CHARACTERS_MAX]
    return f"{cut_text} [cut: the line has {len(line.data) + line.left_out} bytes]"


class LineBuffer:
    """The beginning of a line whose end has not come yet."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._left_out = 0

    def feed_bytes(self, data: bytes) -> "list[RawLine]":
        """Take more bytes; return the lines that they end."""
        *pieces, unfinished_line = data.split(b"\n")
        lines = [self._end_line(pieces.pop(0))] if pieces and self._has_begun() else []
        lines += [
            RawLine(data=piece) if len(piece) <= RAW_BYTES_MAX else self._end_line(piece)
            for piece in pieces
        ]
        self._keep_piece(unfinished_line)
        return lines

    def take_rest(self) -> "list[RawLine]":
        """Return what came without an end of line."""
        return [self._end_line(b"")] if self._has_begun() else []

    def _has_begun(self) -> bool:
        return bool(self._head or self._left_out)

    def _end_line(self, piece: bytes) -> RawLine:
        self._keep_piece(piece)
        line = RawLine(data=bytes(self._head), left_out=self._left_out)
        self._head.clear()
        self._left_out = 0
        return line

    def _keep_piece(self, piece: bytes) -> None:
        room = RAW_BYTES_MAX - len(self._head)
        self._head += piece[:room]
        self._left_out += max(0, len(piece) - room)
