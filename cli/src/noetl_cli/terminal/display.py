"""How a followed execution is shown: bars on a terminal, lines in a log, JSON in a pipe."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from noetl_cli import terminal_output
from noetl_cli.terminal.progress_tracker import LoopMeter, ProgressNote, ProgressTracker
from noetl_cli.terminal_output import flatten_text
from noetl_contracts.commands.task_metrics import SparkProgress, StepProgress, StreamProgress
from noetl_contracts.ids import CommandId

LINE_EVERY_S = 2.0
BARS_MAX = 20
STEP_WIDTH = 24
# The same line of progress is written again after this time.
PROGRESS_AGAIN_S = 10.0
# A task that tells nothing for so long is over.
PROGRESS_OLD_S = 3.0
_MEGABYTE = 1_000_000


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

    def show_event(
        self, view: dict[str, Any], notes: list[ProgressNote], tracker: ProgressTracker
    ) -> None:
        """Show an event that was counted."""

    def show_progress(self, progress: StepProgress) -> None:
        """Show how far a task is."""

    def show_notice(self, text: str) -> None:
        """Say something about the connection, not about the execution."""


class _NoRestore:
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


class JsonDisplay(_NoRestore):
    """One line of JSON for every event."""

    def __init__(self, execution_id: str) -> None:
        self._execution_id = execution_id

    def show_event(
        self, view: dict[str, Any], notes: list[ProgressNote], tracker: ProgressTracker
    ) -> None:
        """Write the event as it came, with its execution."""
        del notes, tracker
        terminal_output.print_json({"execution_id": self._execution_id, **view})

    def show_progress(self, progress: StepProgress) -> None:
        """Leave it out: it is no event."""

    def show_notice(self, text: str) -> None:
        """Print a note on standard error, apart from the output."""
        terminal_output.print_note(text)


class LineDisplay(_NoRestore):
    """Lines for logs: what happened, and now and then how far the loops are."""

    def __init__(self, write: Callable[[str], None] = terminal_output.print_line) -> None:
        self._write = write
        self._said_at = 0.0
        self._said_by_command: dict[CommandId, tuple[str, float]] = {}
        self._told_pages: set[str] = set()

    def show_event(
        self, view: dict[str, Any], notes: list[ProgressNote], tracker: ProgressTracker
    ) -> None:
        """Write what is worth a line."""
        del view
        for note in notes:
            self._write(flatten_text(note.text))
        open_meters = tracker.list_open_meters()
        now = time.monotonic()
        if open_meters and now - self._said_at >= LINE_EVERY_S:
            self._said_at = now
            for meter in open_meters[:BARS_MAX]:
                self._write(flatten_text(f"{meter.step}: {format_progress(meter)}"))

    def show_progress(self, progress: StepProgress) -> None:
        """Write it where it has changed, and now and then where it has not."""
        page = progress.spark.page
        if page and page not in self._told_pages:
            self._told_pages.add(page)
            self._write(flatten_text(f"{progress.step}: Spark's page is {page}"))
        text, now = format_spark_progress(progress.spark), time.monotonic()
        last_line, said_at = self._said_by_command.get(
            progress.command_id, ("", now - LINE_EVERY_S)
        )
        if now - said_at < (LINE_EVERY_S if text != last_line else PROGRESS_AGAIN_S):
            return
        self._said_by_command[progress.command_id] = text, now
        self._write(flatten_text(f"{progress.step}: {text}, {progress.spark.seconds:.0f} s"))

    def show_notice(self, text: str) -> None:
        """Print a note on standard error, apart from the output."""
        terminal_output.print_note(text)


class BarDisplay:
    """One bar for each loop and Spark task that runs; everything else scrolls by above."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            _FiguresColumn(),
            console=console,
            transient=True,
            refresh_per_second=8,
        )
        self._bar_by_run: dict[str, TaskID] = {}
        self._spark_bars: dict[CommandId, tuple[TaskID, float]] = {}
        self._told_pages: set[str] = set()

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

    def show_event(
        self, view: dict[str, Any], notes: list[ProgressNote], tracker: ProgressTracker
    ) -> None:
        """Print notes above the bars and move the bars."""
        del view
        for note in notes:
            self._print_above(note.text, style="red" if note.is_failure else "")
        open_meters = {meter.run_id: meter for meter in tracker.list_open_meters()[:BARS_MAX]}
        for run in [run for run in self._bar_by_run if run not in open_meters]:
            self._progress.remove_task(self._bar_by_run.pop(run))
        for run, meter in open_meters.items():
            self._move_bar(run, meter)
        self._drop_old_bars()

    def show_progress(self, progress: StepProgress) -> None:
        """Move the bar of a task on Spark."""
        command_id, spark = progress.command_id, progress.spark
        if spark.page and spark.page not in self._told_pages:
            self._told_pages.add(spark.page)
            self._print_above(f"{progress.step}: Spark's page is {spark.page}", style="")
        self._drop_old_bars()
        if command_id not in self._spark_bars and len(self._spark_bars) >= BARS_MAX:
            return
        bar, _ = self._spark_bars.get(command_id) or (self._add_bar(progress.step), 0.0)
        self._spark_bars[command_id] = bar, time.monotonic()
        self._progress.update(
            bar,
            total=sum(stage.tasks for stage in spark.stages) or None,
            completed=sum(stage.tasks_done for stage in spark.stages),
            figures=f"{format_spark_progress(spark)}, {spark.seconds:.0f} s",
        )

    def show_notice(self, text: str) -> None:
        """Print above the bars."""
        self._print_above(text, style="yellow")

    def _move_bar(self, run: str, meter: LoopMeter) -> None:
        if run not in self._bar_by_run:
            self._bar_by_run[run] = self._add_bar(meter.step)
        self._progress.update(
            self._bar_by_run[run],
            total=meter.total,
            completed=meter.done + meter.failed,
            figures=format_progress(meter),
        )

    def _add_bar(self, step: str) -> TaskID:
        name = terminal_output.escape_controls(step)[:STEP_WIDTH]
        return self._progress.add_task(name.ljust(STEP_WIDTH), total=None)

    def _drop_old_bars(self) -> None:
        """Remove the bars of tasks that tell nothing any more."""
        now = time.monotonic()
        for command_id, (bar, told_at) in list(self._spark_bars.items()):
            if now - told_at > PROGRESS_OLD_S:
                self._progress.remove_task(bar)
                del self._spark_bars[command_id]

    def _print_above(self, text: str, *, style: str) -> None:
        self._progress.console.print(Text(flatten_text(text), style=style))


class _FiguresColumn(ProgressColumn):
    """The numbers beside a bar."""

    def render(self, task: Task) -> Text:
        """Show what was counted last."""
        return Text(str(task.fields.get("figures", "")))


def choose_display(execution_id: str, *, as_json: bool, is_aside: bool = False) -> Display:
    """Choose by who reads: a program, a person, or a log.

    With `is_aside` standard output is left to the result.
    """
    if as_json:
        return JsonDisplay(execution_id)
    if is_aside:
        return LineDisplay(terminal_output.print_note)
    if terminal_output.is_terminal():
        return BarDisplay(terminal_output.open_console())
    return LineDisplay()


def format_progress(meter: LoopMeter) -> str:
    """Write how far a loop is, such as `41,350/50,000 rows  1,210/s  3 retries  ETA 0:07`."""
    ended_count = meter.done + meter.failed
    parts = [f"{ended_count:,}" + (f"/{meter.total:,}" if meter.total is not None else "")]
    parts[0] += f" {meter.unit}"
    rate, eta_s = meter.compute_units_per_s(), meter.compute_seconds_left()
    if rate is not None:
        parts.append(f"{rate:,.0f}/s" if rate >= 1 else f"{rate:.2f}/s")
    if meter.failed:
        parts.append(f"{meter.failed:,} failed")
    if meter.retries:
        parts.append(f"{meter.retries:,} retries")
    if eta_s is not None:
        parts.append(f"ETA {_format_duration(eta_s)}")
    return "  ".join(parts)


def format_spark_progress(spark: SparkProgress) -> str:
    """Write what Spark does, such as `Spark job 2: stage 7 45/200 tasks`."""
    match spark.phase:
        case "session":
            usual = f" (usually {spark.usual_s:.0f} s)" if spark.usual_s else ""
            return f"Spark session starts{usual}"
        case "job" if spark.stream is not None:
            return _format_stream(spark.stream)
        case "queue":
            return "waits for other Spark jobs of its worker"
        case "job" if not spark.jobs:
            return "Spark works, no job yet"
        case "job" if not spark.stages:
            return f"Spark job {spark.jobs:,}: no stage runs"
    stages = (
        f"stage {stage.stage} {stage.tasks_done:,}/{stage.tasks:,} tasks" for stage in spark.stages
    )
    return f"Spark job {spark.jobs:,}: {', '.join([*stages, *_list_spark_work(spark)])}"


def _format_stream(stream: StreamProgress) -> str:
    """Write how a stream keeps up, such as `stream: 3 batches, ...`."""
    parts = (
        f"stream: batch {stream.batch:,}",
        f"{stream.rows:,} rows of {stream.files:,} files",
        f"{stream.processed_rows_per_s:,.0f} rows/s",
        f"{stream.batch_s:.1f} s a batch",
        f"{stream.files_behind:,} files behind",
        *([f"watermark {stream.watermark[:19]}"] if stream.watermark else []),
    )
    return ", ".join(parts)


def _list_spark_work(spark: SparkProgress) -> list[str]:
    """List what the tasks have read and moved, and the one that lags behind."""
    parts = [f"{spark.tasks_running:,} run"] if spark.tasks_running else []
    parts += [f"{spark.rows:,} rows"] if spark.rows else []
    amounts = (
        (spark.input_bytes, "read"),
        (spark.shuffle_bytes, "shuffled"),
        (spark.spill_bytes, "spilled"),
    )
    parts += [f"{_format_size(size)} {verb}" for size, verb in amounts if size]
    if spark.skew is not None:
        skew = spark.skew
        text = f"task {skew.task} of stage {skew.stage} runs {skew.times:g} times the median"
        parts.append(f"{text}: skewed rows")
    return parts


def _format_size(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= _MEGABYTE else f"{size / 1e3:,.1f} kB"


def _format_duration(seconds: float) -> str:
    minutes, remainder_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder_s:02}" if hours else f"{minutes}:{remainder_s:02}"
