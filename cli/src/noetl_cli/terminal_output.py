"""Prints the output of commands: text, tables and spinners on a terminal, plain text in a pipe."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from noetl_cli import settings
from noetl_cli.errors import CliError
from noetl_contracts.written_names import escape_json, escape_line, escape_text
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    from rich import console as rich_console
    from rich import progress
    from rich import table as rich_table
    from rich import text as rich_text
else:
    # Most verbs print nothing with these, and they take longer to load than most verbs.
    rich_console = LazyModule("rich.console")
    rich_table = LazyModule("rich.table")
    rich_text = LazyModule("rich.text")
    progress = LazyModule("rich.progress")

LINE_CHARACTERS_MAX = 500


def open_console(*, is_error: bool = False) -> "rich_console.Console":
    """Open a console that colours only terminals whose owner wants colour."""
    stream = sys.stderr if is_error else sys.stdout
    is_plain = settings.is_plain(environ=settings.copy_environment()) or not stream.isatty()
    return rich_console.Console(
        file=stream, no_color=is_plain, highlight=False, soft_wrap=True, emoji=False, markup=True
    )


def is_terminal() -> bool:
    """Tell whether a person watches."""
    return sys.stdout.isatty()


def escape_controls(text: str) -> str:
    """Show control characters instead of obeying them; line ends and tabs stay."""
    return escape_text(text)


def flatten_text(text: str) -> str:
    """Make data harmless: one line, no control characters, bounded."""
    flat = escape_line(" ".join(text.split()))
    if len(flat) > LINE_CHARACTERS_MAX:
        return flat[: LINE_CHARACTERS_MAX - 1] + "…"
    return flat


def print_line(text: str) -> None:
    """Write one line: a line end within shows as what it is."""
    sys.stdout.write(escape_line(text) + "\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    """Write a text of several lines."""
    sys.stdout.write(escape_controls(text) + "\n")
    sys.stdout.flush()


def print_note(text: str) -> None:
    """Write one line beside the output proper."""
    sys.stderr.write(escape_line(text) + "\n")
    sys.stderr.flush()


def print_suspensions(listed: Sequence[Mapping[str, Any]]) -> None:
    """Say of what starts playbooks why it starts none; a planner of before does not say."""
    for suspension in listed:
        if suspension.get("suspended"):
            print_note(f"{suspension['name']} is suspended: {suspension['suspended']}")


def format_version(number: int | None) -> str:
    """Name a version of a playbook; those below zero are drafts."""
    if number is None:
        return ""
    return f"draft {-number}" if number < 0 else f"version {number}"


def print_json(value: Any) -> None:
    """Write one value as one line of JSON."""
    sys.stdout.write(escape_json(msgspec.json.encode(value).decode()) + "\n")
    sys.stdout.flush()


def print_error(error: CliError, *, as_json: bool = False) -> None:
    """Say what went wrong and what to do about it."""
    if as_json:
        print_json({"error": error.message, "way_out": error.way_out})
        return
    if settings.is_plain(environ=settings.copy_environment()) or not sys.stderr.isatty():
        print_note(f"error: {error.message}")
        if error.way_out:
            print_note(f"  try: {error.way_out}")
        return
    out = open_console(is_error=True)
    out.print("error:", style="bold red", end=" ")
    out.print(escape_controls(error.message), markup=False)
    if error.way_out:
        out.print("  try:", style="bold", end=" ")
        out.print(escape_controls(error.way_out), markup=False)


_GAP = 2


def print_rows(head: Sequence[str], rows: Sequence[Sequence[str]], *, nothing: str) -> None:
    """Print rows under their heads; say on the other channel when there are none.

    On a terminal long cells are folded within its width; in a pipe each row is one whole line.
    """
    if not rows:
        print_note(nothing)
        return
    cells = [tuple(flatten_text(cell) for cell in row) for row in rows]
    if is_terminal():
        _print_rich_table(head, cells)
    else:
        _print_columns([tuple(head), *cells])


def _print_columns(cells: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print_line((" " * _GAP).join(padded).rstrip())


def _print_rich_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Fold long cells in their columns; the first column, which names the row, stays whole."""
    table = rich_table.Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for place, name in enumerate(head):
        table.add_column(name, no_wrap=place == 0, overflow="fold")
    for row in rows:
        # As it stands: data is no markup.
        table.add_row(*(rich_text.Text(cell) for cell in row))
    open_console().print(table, soft_wrap=False)


SHOWN_AFTER_S = 1.0


@contextmanager
def show_spinner(text: str, *, is_quiet: bool = False) -> Iterator[None]:
    """Show a text and the elapsed time on standard error, from a second on, while the block runs.

    Nothing is shown where no person watches, nor with `is_quiet`: a program reads the output.
    """
    with show_progress(text, is_quiet=is_quiet):
        yield


@contextmanager
def show_progress(text: str, *, is_quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a spinner as `show_spinner` does; what is yielded adds a bar of how much of how much."""
    line = _ProgressLine(text)
    is_plain = settings.is_plain(environ=settings.copy_environment())
    if is_quiet or is_plain or not sys.stderr.isatty():
        yield line.set_progress
        return
    timer = threading.Timer(SHOWN_AFTER_S, line.show_line)
    timer.daemon = True
    timer.start()
    try:
        yield line.set_progress
    finally:
        timer.cancel()
        line.remove_line()


class _ProgressLine:
    """A line that begins in the thread of a timer, and ends in that of the work."""

    def __init__(self, text: str) -> None:
        self._text = flatten_text(text)
        self._lock = threading.Lock()
        self._has_ended = False
        self._done = 0
        self._total: int | None = None
        self._progress: progress.Progress | None = None
        self._task: progress.TaskID | None = None

    def show_line(self) -> None:
        """Show the line, unless the work has ended."""
        with self._lock:
            if self._has_ended:
                return
            self._progress = progress.Progress(
                progress.SpinnerColumn(),
                progress.TextColumn("{task.description}", markup=False),
                progress.TimeElapsedColumn(),
                progress.BarColumn(),
                progress.TextColumn("{task.fields[figures]}", markup=False),
                console=open_console(is_error=True),
                transient=True,
            )
            self._task = self._progress.add_task(self._text, total=None, figures="")
            self._update_line()
            self._progress.start()

    def set_progress(self, done: int, total: int) -> None:
        """Say how much is done, and of how much; the line shows it once it is there."""
        with self._lock:
            self._done, self._total = done, total
            self._update_line()

    def _update_line(self) -> None:
        if self._progress is None or self._task is None or self._total is None:
            return
        self._progress.update(
            self._task,
            completed=self._done,
            total=self._total,
            figures=f"{self._done:,} of {self._total:,}",
        )

    def remove_line(self) -> None:
        """Remove the line."""
        with self._lock:
            self._has_ended = True
            if self._progress is not None:
                self._progress.stop()
