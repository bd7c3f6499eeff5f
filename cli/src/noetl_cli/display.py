"""How a followed execution is shown: bars on a terminal, lines in a log, JSON in a pipe."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from noetl_cli import render
from noetl_cli.meters import Meter, Note, Tracker
from noetl_cli.render import one_line

LINE_EVERY_S = 2.0
BARS_MAX = 20
STEP_WIDTH = 24


class Display(Protocol):
    """Shows what was counted; a context that restores the terminal."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the terminal."""

    def show(self, view: dict[str, Any], notes: list[Note], tracker: Tracker) -> None:
        """Show an event that was counted."""

    def tell(self, text: str) -> None:
        """Say something about the connection, not about the execution."""


class _Plain:
    """A context without anything to restore."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return


class JsonDisplay(_Plain):
    """One line of JSON for every event."""

    def __init__(self, execution_id: str) -> None:
        self._execution_id = execution_id

    def show(self, view: dict[str, Any], notes: list[Note], tracker: Tracker) -> None:
        """Write the event as it came, with its execution."""
        del notes, tracker
        render.json_line({"execution_id": self._execution_id, **view})

    def tell(self, text: str) -> None:
        """Write beside the output proper."""
        render.note(text)


class LineDisplay(_Plain):
    """Lines for logs: what happened, and now and then how far the loops are."""

    def __init__(self, write: Callable[[str], None] = render.line) -> None:
        self._write = write
        self._said_at = 0.0

    def show(self, view: dict[str, Any], notes: list[Note], tracker: Tracker) -> None:
        """Write what is worth a line."""
        del view
        for note in notes:
            self._write(one_line(note.text))
        live = tracker.live()
        now = time.monotonic()
        if live and now - self._said_at >= LINE_EVERY_S:
            self._said_at = now
            for meter in live[:BARS_MAX]:
                self._write(one_line(f"{meter.step}: {progress_text(meter)}"))

    def tell(self, text: str) -> None:
        """Write beside the output proper."""
        render.note(text)


class BarDisplay:
    """One bar for each loop that runs; everything else scrolls by above."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            _Figures(),
            console=console,
            transient=True,
            refresh_per_second=8,
        )
        self._bar_by_run: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, view: dict[str, Any], notes: list[Note], tracker: Tracker) -> None:
        """Print notes above the bars and move the bars."""
        del view
        for note in notes:
            self._print(note.text, style="red" if note.is_failure else "")
        live = {meter.run_id: meter for meter in tracker.live()[:BARS_MAX]}
        for run in [run for run in self._bar_by_run if run not in live]:
            self._progress.remove_task(self._bar_by_run.pop(run))
        for run, meter in live.items():
            self._move(run, meter)

    def tell(self, text: str) -> None:
        """Print above the bars."""
        self._print(text, style="yellow")

    def _move(self, run: str, meter: Meter) -> None:
        if run not in self._bar_by_run:
            step = render.safe(meter.step)[:STEP_WIDTH]
            self._bar_by_run[run] = self._progress.add_task(step.ljust(STEP_WIDTH), total=None)
        self._progress.update(
            self._bar_by_run[run],
            total=meter.total,
            completed=meter.done + meter.failed,
            figures=progress_text(meter),
        )

    def _print(self, text: str, *, style: str) -> None:
        self._progress.console.print(Text(one_line(text), style=style))


class _Figures(ProgressColumn):
    """The numbers beside a bar."""

    def render(self, task: Task) -> Text:
        """Show what was counted last."""
        return Text(str(task.fields.get("figures", "")))


def choose(execution_id: str, *, as_json: bool, is_aside: bool = False) -> Display:
    """Choose by who reads: a program, a person, or a log.

    With `is_aside` standard output is left to the result.
    """
    if as_json:
        return JsonDisplay(execution_id)
    if is_aside:
        return LineDisplay(render.note)
    if render.is_terminal():
        return BarDisplay(render.console())
    return LineDisplay()


def progress_text(meter: Meter) -> str:
    """Write how far a loop is, such as `41,350/50,000 rows  1,210/s  3 retries  ETA 0:07`."""
    seen = meter.done + meter.failed
    parts = [f"{seen:,}" + (f"/{meter.total:,}" if meter.total is not None else "")]
    parts[0] += f" {meter.unit}"
    rate, eta_s = meter.rate(), meter.eta_s()
    if rate is not None:
        parts.append(f"{rate:,.0f}/s" if rate >= 1 else f"{rate:.2f}/s")
    if meter.failed:
        parts.append(f"{meter.failed:,} failed")
    if meter.retries:
        parts.append(f"{meter.retries:,} retries")
    if eta_s is not None:
        parts.append(f"ETA {_clock(eta_s)}")
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
