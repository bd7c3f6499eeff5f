"""A line on a terminal that shows what is waited for, and how long already."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from noetl_cli import render, settings
from noetl_storage.deferred import Deferred

if TYPE_CHECKING:
    from rich import progress
else:
    # What ends within a second needs none of it.
    progress = Deferred("rich.progress")

SHOWN_AFTER_S = 1.0


@contextmanager
def show_spinner(text: str, *, is_quiet: bool = False) -> Iterator[None]:
    """Show a text and the elapsed time on standard error, from a second on, while the block runs.

    Nothing is shown where no person watches, nor with `is_quiet`: a program reads the output.
    """
    is_plain = settings.is_plain(environ=settings.environment())
    if is_quiet or is_plain or not sys.stderr.isatty():
        yield
        return
    line = _Line(text)
    timer = threading.Timer(SHOWN_AFTER_S, line.begin)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.end()


class _Line:
    """A line that begins in the thread of a timer, and ends in that of the work."""

    def __init__(self, text: str) -> None:
        self._text = render.one_line(text)
        self._lock = threading.Lock()
        self._has_ended = False
        self._shown: progress.Progress | None = None

    def begin(self) -> None:
        """Show the line, unless the work has ended."""
        with self._lock:
            if self._has_ended:
                return
            self._shown = progress.Progress(
                progress.SpinnerColumn(),
                progress.TextColumn("{task.description}", markup=False),
                progress.TimeElapsedColumn(),
                console=render.console(is_error=True),
                transient=True,
            )
            self._shown.add_task(self._text, total=None)
            self._shown.start()

    def end(self) -> None:
        """Remove the line."""
        with self._lock:
            self._has_ended = True
            if self._shown is not None:
                self._shown.stop()
