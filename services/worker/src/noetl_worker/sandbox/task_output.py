"""The output of user code, printed and logged, on its way out of the sandbox's process."""

import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from noetl_contracts.log_chunks import LOGGING, STDERR, STDOUT

_LEVELS = ((logging.CRITICAL, "critical"), (logging.ERROR, "error"), (logging.WARNING, "warning"))
_DESCRIPTORS = {STDOUT: 1, STDERR: 2}
MARK = b"\x1e"
# After the last record of a call.
END = "end"
# Longer texts are sent as several records: those up to 4 KiB come whole also from many threads.
PIECE_BYTES = 2048


class OutputChannel:
    """Sends records into the pipe behind standard output, as fast as the worker reads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def send_record(self, record: "OutputRecord") -> None:
        """Send a record; what nobody can take any more is dropped."""
        data = encode_record(record)
        with self._lock, contextlib.suppress(OSError):
            while data:
                data = data[os.write(_DESCRIPTORS[STDOUT], data) :]

    def finish_call(self) -> None:
        """Say on both pipes that a call has ended."""
        self.send_record(OutputRecord(END))
        with contextlib.suppress(OSError):
            os.write(_DESCRIPTORS[STDERR], encode_record(OutputRecord(END)))


class OutputStream(io.RawIOBase):
    """Stands below `sys.stdout` or `sys.stderr`: whole lines leave at once, others when flushed."""

    def __init__(self, name: str, channel: OutputChannel) -> None:
        super().__init__()
        self._name = name
        self._channel = channel
        self._unsent_bytes = bytearray()

    def writable(self) -> bool:
        """Admit writers."""
        return True

    def fileno(self) -> int:
        """Return what other programs of the task may write to."""
        return _DESCRIPTORS[self._name]

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # any buffer is taken
        """Take bytes."""
        piece = bytes(data)
        self._unsent_bytes += piece
        end = self._unsent_bytes.rfind(b"\n") + 1
        if end or len(self._unsent_bytes) > PIECE_BYTES:
            self._send_waiting(end or len(self._unsent_bytes))
        return len(piece)

    def flush(self) -> None:
        """Send what waits for the end of its line."""
        self._send_waiting(len(self._unsent_bytes))

    def _send_waiting(self, count: int) -> None:
        ready = bytes(self._unsent_bytes[:count])
        del self._unsent_bytes[:count]
        text = ready.decode(errors="backslashreplace")
        for start in range(0, len(text), PIECE_BYTES):
            self._channel.send_record(OutputRecord(self._name, text[start : start + PIECE_BYTES]))


class LevelHandler(logging.Handler):
    """Sends what is logged, with its level."""

    def __init__(self, channel: OutputChannel) -> None:
        super().__init__()
        self._channel = channel
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record of `logging`; it names its logger, unless that is the root."""
        try:
            text = self.format(record)
        except (TypeError, ValueError, KeyError):
            # Arguments that do not fit their text: `logging` says so on standard error.
            self.handleError(record)
            return
        named_text = text if record.name == "root" else f"{record.name}: {text}"
        encodable_text = named_text.encode(errors="backslashreplace").decode()
        self._channel.send_record(
            OutputRecord(LOGGING, encodable_text, _get_level_name(record.levelno))
        )


class TaskOutput:
    """The output of one call after another."""

    def __init__(self) -> None:
        self._channel = OutputChannel()
        self._handler = LevelHandler(self._channel)

    @contextlib.contextmanager
    def capture_output(self) -> Iterator[None]:
        """Send what is printed and logged while the block runs; say when it has ended."""
        before = sys.stdout, sys.stderr
        streams = tuple(self._open_stream(name) for name in (STDOUT, STDERR))
        sys.stdout, sys.stderr = streams
        root = logging.getLogger()
        root.setLevel(logging.INFO)
        # The call before may have put handlers of its own there.
        root.handlers[:] = [self._handler]
        try:
            yield
        finally:
            for stream in streams:
                # User code may have closed it.
                with contextlib.suppress(ValueError, OSError):
                    stream.flush()
            sys.stdout, sys.stderr = before
            self._channel.finish_call()

    def _open_stream(self, name: str) -> io.TextIOWrapper:
        return io.TextIOWrapper(
            OutputStream(name, self._channel),  # type: ignore[arg-type]  # it is written to alone
            encoding="utf-8",
            errors="backslashreplace",
            # One write for a line, however many parts `print` gives it.
            line_buffering=True,
        )


def _get_level_name(number: int) -> str:
    for level_min, level in _LEVELS:
        if number >= level_min:
            return level
    return "info" if number >= logging.INFO else "debug"


class OutputRecord(Struct, frozen=True, array_like=True):
    """Text of a stream, with its ends of lines; that of `logging` is whole and has a level."""

    stream: str
    text: str = ""
    level: str = ""


def encode_record(record: "OutputRecord") -> bytes:
    """Encode a record; JSON has neither a mark nor an end of line in it."""
    return MARK + msgspec.json.encode(record) + b"\n"
