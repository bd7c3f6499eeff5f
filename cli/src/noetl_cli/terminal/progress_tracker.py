"""The progress of a run as text: its tasks, tries, loops and waits."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import MetricsByTask, TaskMetrics, sum_metrics
from noetl_contracts.commands.waits import MessageWait, TimeWait
from noetl_contracts.errors import ErrorObject, MalformedMessage, UnknownEventType, summarize_error
from noetl_contracts.events import Event
from noetl_contracts.events.command_events import CommandParked, CommandReissued
from noetl_contracts.events.execution_events import (
    CancelRequested,
    DeadlinePassed,
    ExecutionCancelled,
    ExecutionPaused,
    ExecutionResumed,
    PlaybookCompleted,
    PlaybookFailed,
    PlaybookInitialized,
)
from noetl_contracts.events.frame_events import FrameCommitted, FrameDispatched, FrameFailed
from noetl_contracts.events.loop_events import LoopDone, LoopFailed, LoopStarted
from noetl_contracts.events.step_events import CallDone, CallError, StepEnter, StepExit
from noetl_contracts.ledger import envelope
from noetl_contracts.requests import inbox
from noetl_contracts.status import ExecutionStatus, RunStatus


def describe_tasks(tasks: Mapping[str, TaskMetrics]) -> str:
    """Write rows, failed attempts, requests and bytes; empty when there is nothing to tell."""
    if not tasks:
        return ""
    total = _sum_metrics(tasks.values())
    parts = []
    if total.rows_in is not None:
        parts.append(f"{total.rows_in:,} rows read")
    last_rows = [task.rows_out for task in tasks.values() if task.rows_out is not None]
    if last_rows:
        # The rows of a task that another one takes over are not more rows.
        parts.append(_format_count(last_rows[-1], "row"))
    if total.failed_attempts:
        parts.append(_format_count(total.failed_attempts, "failed attempt"))
    if total.last_request is not None:
        request = total.last_request
        answer = "no answer" if request.status is None else str(request.status)
        many = f"{total.requests:,} requests, last " if total.requests > 1 else ""
        parts.append(f"{many}{request.method} {request.url} {answer}")
    if total.bytes_in or total.bytes_out:
        parts.append(f"{total.bytes_in:,} bytes in, {total.bytes_out:,} out")
    if text := _describe_checks(tasks.values()):
        parts.append(text)
    return ", ".join(parts)


def _describe_checks(tasks: Iterable[TaskMetrics]) -> str:
    """Write `2 of 5 checks broken: orders: not_null id, ...`; empty where none was made."""
    reports = [report for task in tasks for report in task.checks]
    broken = [f"{report.dataset}: {report.check}" for report in reports if not report.is_met]
    if not broken:
        return f"{_format_count(len(reports), 'check')} held" if reports else ""
    named = "; ".join(broken[:_CHECKS_SHOWN]) + ("; …" if len(broken) > _CHECKS_SHOWN else "")
    return f"{len(broken)} of {_format_count(len(reports), 'check')} broken ({named})"


def _sum_metrics(parts: Iterable[TaskMetrics]) -> TaskMetrics:
    total = TaskMetrics()
    for part in parts:
        total = sum_metrics(total, part)
    return total


def _format_count(number: int, unit: str) -> str:
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


WINDOW = timedelta(seconds=10)
_MARKS_MAX = 64
_CHECKS_SHOWN = 3
_DUCKDB_PLACE = "\n\nLINE"
_MEANINGS = {
    "repeat_bound": "repeat_bound: it stopped at its bound, and its source has more",
    "collected_nothing": "collected_nothing: no page had anything where merge_path leads",
    "accumulate_truncated": "accumulate_truncated: more was collected than max_items keeps",
}


def describe_note(note: str) -> str:
    """Say what a note of a step means."""
    return _MEANINGS.get(note, note)


class ProgressNote(Struct, frozen=True, kw_only=True):
    """Something worth a line of its own."""

    text: str
    is_failure: bool = False


class LoopMeter(Struct, kw_only=True):
    """How far one loop epoch is; of one that `runs_whole` failed items cannot run alone."""

    step: str
    run_id: str
    unit: str
    started_at: datetime
    seen_at: datetime
    total: int | None = None
    done: int = 0
    failed: int = 0
    retries: int = 0
    frames: int = 0
    is_closed: bool = False
    runs_whole: bool = False
    marks: list[tuple[datetime, int]] = []

    def record_progress(self, at: datetime) -> None:
        """Remember how far the loop was at a moment, for the rate of the last seconds."""
        self.seen_at = at
        self.marks.append((at, self.done + self.failed))
        while len(self.marks) > _MARKS_MAX or at - self.marks[0][0] > WINDOW:
            self.marks.pop(0)

    def compute_units_per_s(self) -> float | None:
        """Return units a second over the last moments, else since the start."""
        at, count = self.marks[0] if self.marks else (self.started_at, 0)
        elapsed_s = (self.seen_at - at).total_seconds()
        if elapsed_s < 1:
            count, elapsed_s = 0, (self.seen_at - self.started_at).total_seconds()
        if elapsed_s <= 0:
            return None
        return max(0.0, self.done + self.failed - count) / elapsed_s

    def compute_seconds_left(self) -> float | None:
        """Return the seconds left at this rate, when the total is known."""
        rate = self.compute_units_per_s()
        if self.total is None or not rate:
            return None
        return max(0, self.total - self.done - self.failed) / rate


class ProgressTracker:
    """Counts one execution's events.

    `answering` is what follows a command that sends a message to it, as ` --server URL`; None where
    no command can.
    """

    def __init__(self, *, answering: str | None = "") -> None:
        self._answering = answering
        self.version = 0
        self.meters: dict[str, LoopMeter] = {}
        self.status = ExecutionStatus.PENDING
        self.error: ErrorObject | None = None
        self.failed_step: str | None = None
        self.has_failures = False
        self.retries = 0
        self.rows = 0
        self.started_at: datetime | None = None
        self.ended_at: datetime | None = None
        self._run_by_stage: dict[str, str] = {}
        self._entered_at: dict[str, datetime] = {}

    @property
    def is_over(self) -> bool:
        """Tell whether the terminal event was seen."""
        return self.ended_at is not None

    @property
    def has_failed_items(self) -> bool:
        """Tell whether items of a loop failed."""
        return any(meter.failed for meter in self.meters.values())

    def find_whole_step(self) -> str | None:
        """Return a step with failed items, where those of none can run alone."""
        failed = [meter for meter in self.meters.values() if meter.failed]
        return failed[0].step if failed and all(meter.runs_whole for meter in failed) else None

    def list_open_meters(self) -> list[LoopMeter]:
        """Return the meters of loops that still run."""
        return [meter for meter in self.meters.values() if not meter.is_closed]

    def count_event(self, view: dict[str, Any]) -> list[ProgressNote]:
        """Count one event and say what is worth a line; an event seen before says nothing."""
        if view["version"] <= self.version:
            return []
        self.version = view["version"]
        at = datetime.fromisoformat(view["created_at"])
        try:
            event = envelope.join_event_body(
                view["event_type"], view["context"], view["result"], view["error"]
            )
        except (UnknownEventType, MalformedMessage):
            # A newer planner may say things that this command line does not know.
            return []
        return [
            *self._count_execution(event, at),
            *self._note_pause(event),
            *self._count_step(event, at),
            *self._count_loop(event, at),
            *self._count_frame(event, at),
        ]

    def _note_pause(self, event: Event) -> list[ProgressNote]:
        match event:
            case ExecutionPaused(reason=reason):
                self.status = ExecutionStatus.PAUSED
                return [ProgressNote(text="paused" + (f": {reason}" if reason else ""))]
            case ExecutionResumed():
                self.status = ExecutionStatus.RUNNING
                return [ProgressNote(text="goes on")]
            case DeadlinePassed(step=step, due_at=due_at):
                return [ProgressNote(text=format_lateness(step, str(due_at)))]
            case _:
                return []

    def _count_execution(self, event: Event, at: datetime) -> list[ProgressNote]:
        match event:
            case PlaybookInitialized():
                self.status, self.started_at = ExecutionStatus.RUNNING, at
            case PlaybookCompleted():
                self.status, self.ended_at = ExecutionStatus.COMPLETED, at
            case PlaybookFailed(error=error, step=step):
                self.status, self.ended_at = ExecutionStatus.FAILED, at
                self.error, self.failed_step = error, step
            case ExecutionCancelled():
                self.status, self.ended_at = ExecutionStatus.CANCELLED, at
            case CancelRequested(reason=reason):
                return [ProgressNote(text="cancelling" + (f": {reason}" if reason else ""))]
            case CommandReissued(step=step, run_id=run, attempt=attempt, reason=reason):
                self._count_retry(run)
                return [
                    ProgressNote(text=f"{step}: attempt {attempt}, for the last one was {reason}")
                ]
            case _:
                pass
        return []

    def _count_step(self, event: Event, at: datetime) -> list[ProgressNote]:
        match event:
            case StepEnter(step=step, run_id=run):
                self._entered_at[run] = at
                return [ProgressNote(text=f"{step}: started")]
            case CommandParked(step=step, wait=TimeWait() as wait):
                until = wait.until.isoformat(timespec="seconds")
                task = f", for its task {wait.task}" if has_own_name(wait.task, step) else ""
                return [ProgressNote(text=f"{step}: waits until {until}{task}")]
            case CommandParked(step=step, wait=MessageWait() as wait):
                return [ProgressNote(text=self._format_awaited(step, wait, at))]
            case CallDone(step=step, notes=notes, tries=tries) if notes or tries:
                try_texts = [format_try(codec.to_builtins(item), step=step) for item in tries]
                return [
                    *(ProgressNote(text=f"{step}: {text}") for text in try_texts),
                    *(ProgressNote(text=f"{step}: note {describe_note(note)}") for note in notes),
                ]
            case StepExit(step=step, status=RunStatus.SKIPPED):
                return [ProgressNote(text=f"{step}: skipped")]
            case StepExit(step=step, run_id=run, status=RunStatus.COMPLETED, tasks=tasks):
                return [ProgressNote(text=self._format_step_end(step, run, at, tasks))]
            case CallError(step=step, error=error, item_index=None):
                return [_build_failure_note(step, error)]
            case CallError(step=step, error=error, item_index=int(index)):
                self.has_failures = True
                return [_build_failure_note(f"{step}: item {index}", error)]
            case _:
                return []

    def _format_awaited(self, step: str, wait: MessageWait, at: datetime) -> str:
        command = inbox.build_send_command(wait)
        if command and self._answering is None:
            command = "nobody can send it: run it again with --listen PORT"
        elif command:
            command += self._answering or ""
        until = message_deadline(at, wait.timeout_s)
        return format_awaited_message(
            step, wait.mode, title=wait.title, until=until, command=command
        )

    def _format_step_end(self, step: str, run: str, at: datetime, tasks: MetricsByTask) -> str:
        entered_at = self._entered_at.pop(run, None)
        seconds = "" if entered_at is None else f" in {(at - entered_at).total_seconds():.2f} s"
        did = describe_tasks(tasks)
        return f"{step}: done{seconds}" + (f": {did}" if did else "")

    def _count_loop(self, event: Event, at: datetime) -> list[ProgressNote]:
        match event:
            case LoopStarted(run_id=run):
                self.meters[run] = _open_meter(event, at)
                if event.stage_id is not None:
                    self._run_by_stage[event.stage_id] = run
            case CallDone(run_id=run, item_index=int()) if run in self.meters:
                self.meters[run].done += 1
                self.meters[run].record_progress(at)
            case CallError(run_id=run, item_index=int()) if run in self.meters:
                self.meters[run].failed += 1
                self.meters[run].record_progress(at)
            case LoopDone(run_id=run, step=step):
                return self._close_meter(run, at)
            case LoopFailed(run_id=run, step=step, error=error):
                self.has_failures = True
                return [*self._close_meter(run, at), _build_failure_note(step, error)]
            case _:
                pass
        return []

    def _count_frame(self, event: Event, at: datetime) -> list[ProgressNote]:
        meter = self._find_meter(event)
        match event:
            case FrameCommitted(row_count=rows, metrics=metrics):
                self.rows += rows
                if meter is not None:
                    meter.done += rows
                    meter.frames += 1
                    self._count_retry(meter.run_id, _count_retries(metrics))
                    meter.record_progress(at)
            case FrameFailed(row_count=rows, rows_failed=failed, error=error):
                self.has_failures = True
                self.rows += rows - failed
                if meter is not None:
                    meter.done += rows - failed
                    meter.failed += failed
                    meter.frames += 1
                    self._count_retry(meter.run_id, _count_retries(event.metrics))
                    meter.record_progress(at)
                label = f"{event.step}: frame {event.frame_id}: {failed} of {rows} rows"
                return [_build_failure_note(label, error)]
            case _:
                pass
        return []

    def _find_meter(self, event: Event) -> LoopMeter | None:
        match event:
            case (
                FrameCommitted(stage_id=stage)
                | FrameFailed(stage_id=stage)
                | FrameDispatched(stage_id=stage)
            ):
                return self.meters.get(self._run_by_stage.get(stage, ""))
            case _:
                return None

    def _count_retry(self, run: str, retries: int = 1) -> None:
        self.retries += retries
        if run in self.meters:
            self.meters[run].retries += retries

    def _close_meter(self, run: str, at: datetime) -> list[ProgressNote]:
        meter = self.meters.get(run)
        if meter is None:
            return []
        meter.is_closed, meter.seen_at = True, at
        elapsed_s = (at - meter.started_at).total_seconds()
        failed = f", {meter.failed:,} failed" if meter.failed else ""
        retries = f", {meter.retries:,} retries" if meter.retries else ""
        text = f"{meter.step}: {meter.done:,} {meter.unit}{failed}{retries} in {elapsed_s:.1f} s"
        return [ProgressNote(text=text, is_failure=meter.failed > 0)]


def message_deadline(since: datetime, timeout_s: float) -> str | None:
    """Return when a wait ends; None where that is further away than dates go."""
    try:
        return (since + timedelta(seconds=timeout_s)).isoformat(timespec="seconds")
    except OverflowError:
        return None


def format_lateness(step: str | None, since: str) -> str:
    """Write that an execution or a step of it is late, since an instant in ISO 8601."""
    return f"{f'{step}: ' if step else ''}late since {since[:19].replace('T', ' ')} UTC"


def format_awaited_message(
    step: str, mode: str, *, title: str | None, until: str | None, command: str, since: str = ""
) -> str:
    """Write which message a step waits for, until when, and the command that sends it."""
    noun = {"approval": "an approval", "signal": "a signal"}.get(mode, f"a {mode}")
    parts = [f"{step}: waits for {noun}" + (f" ({title})" if title else "")]
    parts += [f"since {since}"] if since else []
    parts += [f"until {until}"] if until else []
    return ", ".join(parts) + (f": {command}" if command else "")


def _open_meter(event: LoopStarted, at: datetime) -> LoopMeter:
    is_cursor = event.total is None
    return LoopMeter(
        step=event.step,
        run_id=event.run_id,
        unit="rows" if is_cursor else "items",
        total=event.total,
        started_at=at,
        seen_at=at,
        runs_whole=is_cursor or (event.cut is not None and event.cut.inside is not None),
        marks=[],
    )


def _count_retries(metrics: dict[str, Any]) -> int:
    retries = metrics.get("retries", 0)
    return retries if isinstance(retries, int) else 0


def _build_failure_note(label: str, error: ErrorObject) -> ProgressNote:
    return ProgressNote(
        text=f"{label} failed: {format_error(codec.to_builtins(error))}", is_failure=True
    )


def has_own_name(task: Any, step: str | None) -> bool:
    """Tell whether a task has a name of its own; without one it is the step's only task."""
    return task not in {None, step, f"{step}_task"}


def format_try(failed_try: Mapping[str, Any], *, step: str | None = None) -> str:
    """Write an attempt that failed and was followed by another: which, when, and of what."""
    at = str(failed_try.get("at"))[11:19]
    task = failed_try.get("task")
    which = f"{task}, " if has_own_name(task, step) else ""
    which += f"attempt {failed_try.get('attempt')} at {at}"
    return f"{which}: {failed_try.get('kind')}: {failed_try.get('message')}"


def format_attempts(tries: Sequence[Mapping[str, Any]]) -> str:
    """Write how many attempts a success took, and why the first that is kept had failed."""
    first = tries[0]
    count = max(int(failed.get("attempt") or 1) for failed in tries) + 1
    which = "first" if first.get("attempt") == 1 else f"attempt {first.get('attempt')}"
    return f"{count:,} attempts, {which}: {first.get('kind')}: {first.get('message')}"


def split_statement_place(error: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Take the lines off DuckDB's message that show the statement, with a caret below its place."""
    message = error.get("message")
    if error.get("source") != "duckdb" or not isinstance(message, str):
        return error, []
    text, mark, place = message.partition(_DUCKDB_PLACE)
    lines = (mark.strip() + place).splitlines() if mark else []
    return {**error, "message": text}, [line.rstrip() for line in lines]


def format_error(error: Mapping[str, Any]) -> str:
    """Write an error as kind and message, with the code where it says more than the kind.

    The lines that show the statement's place are left out: they mean nothing in one line.
    """
    error, _ = split_statement_place(error)
    code = error.get("code") or ""
    more = f" [{code}]" if str(code).startswith("PG_") else ""
    return f"{error.get('kind')}: {summarize_error(error)}{more}"
