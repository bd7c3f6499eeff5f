"""What Spark tells the thread of a task of its executors and of Java, on its way to the log."""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from noetl_contracts.log_chunks import LOGGING, STDERR, STDOUT
from noetl_worker.task_logs.task_log import TaskLogPort

# Of a line without an end so much waits for it.
_PIECE_CHARACTERS = 8192
# After so much the thread waits until the log has room again, or for a bounded time.
_PAUSE_CHARACTERS = 64 * 1024
_PAUSE_S = 5.0
_SHARED_LINES_MAX = 200


class DriverOutput:
    """Takes what the thread of one task writes, and hands it to the event loop of its log."""

    def __init__(self, log: TaskLogPort, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._loop = loop
        self._unsent_text_by_stream = {STDOUT: "", STDERR: ""}
        self._unpaused = 0
        self._is_closed = False

    def write_text(self, stream: str, text: str) -> None:
        """Take text; whole lines leave at once."""
        unsent_text = self._unsent_text_by_stream[stream] + text
        end = unsent_text.rfind("\n") + 1
        if len(unsent_text) - end > _PIECE_CHARACTERS:
            end = len(unsent_text)
        self._unsent_text_by_stream[stream] = unsent_text[end:]
        self._send_text(stream, unsent_text[:end])

    def add_line(self, text: str, *, level: str) -> None:
        """Take one line of `logging`."""
        if not self._is_closed:
            with suppress(RuntimeError):
                # The loop of a worker that ends takes no more.
                self._loop.call_soon_threadsafe(
                    lambda: self._log.add_line(LOGGING, text, level=level)
                )
            self._pause_writer(len(text))

    def add_foreign(self, stream: str, line: str) -> None:
        """Take a whole line that another thread has read; it never waits for room."""
        if not self._is_closed:
            with suppress(RuntimeError):
                # The loop of a worker that ends takes no more.
                self._loop.call_soon_threadsafe(self._log.write_output, stream, line.encode())

    def flush_lines(self) -> None:
        """Send what waits for the end of its line."""
        for stream, text in self._unsent_text_by_stream.items():
            self._unsent_text_by_stream[stream] = ""
            self._send_text(stream, text)

    def close(self) -> None:
        """End the log; what a thread that could not be stopped still writes is dropped."""
        self._is_closed = True
        self._log.finish_lines()

    def _send_text(self, stream: str, text: str) -> None:
        if not text or self._is_closed:
            return
        data = text.encode(errors="backslashreplace")
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._log.write_output, stream, data)
        self._pause_writer(len(text))

    def _pause_writer(self, characters: int) -> None:
        self._unpaused += characters
        if self._unpaused < _PAUSE_CHARACTERS:
            return
        self._unpaused = 0
        with suppress(TimeoutError, RuntimeError):
            room_wait = asyncio.run_coroutine_threadsafe(self._log.wait_for_room(), self._loop)
            room_wait.result(_PAUSE_S)


class SharedLines:
    """Lines of a process that knows no tasks: for the task that has run longest.

    While none runs, the latest lines wait for the next one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting_lines: deque[str] = deque(maxlen=_SHARED_LINES_MAX)
        self._running: list[DriverOutput] = []
        self._has_begun = False

    @contextmanager
    def handed_to(self, output: DriverOutput) -> Iterator[None]:
        """Give the lines that wait, and those that come, to a task while the block runs."""
        with self._lock:
            self._has_begun = True
            self._running.append(output)
            self._hand_over()
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(output)

    def add(self, line: str) -> None:
        """Take a line."""
        with self._lock:
            self._waiting_lines.append(line)
            self._hand_over()

    def take_waiting(self) -> list[str]:
        """Take the lines that wait, none if a task had run: what comes after its end is dropped."""
        with self._lock:
            waiting_lines = [] if self._has_begun else list(self._waiting_lines)
            self._waiting_lines.clear()
        return waiting_lines

    def _hand_over(self) -> None:
        while self._running and self._waiting_lines:
            self._running[0].add_foreign(STDERR, self._waiting_lines.popleft())


shared_lines = SharedLines()
