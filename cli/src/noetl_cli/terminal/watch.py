"""Watches an execution until it ends, the time is up, or the person leaves."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from noetl_cli import terminal_output
from noetl_cli.errors import ExitCode
from noetl_cli.terminal import display, error_text
from noetl_cli.terminal.display import Display
from noetl_cli.terminal.progress_tracker import ProgressTracker
from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import StepProgress
from noetl_contracts.status import ExecutionStatus

SECOND_THOUGHT_S = 2.0

EventView = dict[str, Any]


class WatchRequest(Struct, frozen=True, kw_only=True):
    """What to watch; without a command to `attach` again, leaving is cancelling.

    `answering` is what follows a command that sends a message to it, None where no command can.
    `show_result` is called once the execution has completed; `is_aside` leaves standard output to
    it.
    """

    execution_id: str
    events: Callable[[Callable[[str], None]], Iterator[EventView | StepProgress | None]]
    cancel: Callable[[], None]
    timeout_s: float | None = None
    as_json: bool = False
    attach: str = ""
    answering: str | None = ""
    is_aside: bool = False
    has_history: Callable[[], bool] = lambda: True
    show_result: Callable[[], None] | None = None


class WatchTimeoutError(Exception):
    """The execution did not end in the time that was given."""


def watch_execution(watch_request: WatchRequest) -> ExitCode:
    """Show progress until the end; return the exit code that the outcome deserves."""
    tracker = ProgressTracker(answering=watch_request.answering)
    screen = display.choose_display(
        watch_request.execution_id, as_json=watch_request.as_json, is_aside=watch_request.is_aside
    )
    deadline = (
        None if watch_request.timeout_s is None else time.monotonic() + watch_request.timeout_s
    )
    try:
        is_cancelled = _show_events(watch_request, tracker, screen, deadline)
    except WatchTimeoutError:
        goes_on = (
            f"it goes on. Watch it again: {watch_request.attach}"
            if watch_request.attach
            else "it is stopped."
        )
        terminal_output.print_note(f"Not over after {watch_request.timeout_s:g} s; {goes_on}")
        return ExitCode.TIMEOUT
    if not tracker.is_over:
        return ExitCode.CANCELLED if is_cancelled else _note_detached(watch_request)
    if not watch_request.as_json:
        print_conclusion(
            tracker,
            write=terminal_output.print_note
            if watch_request.is_aside
            else terminal_output.print_line,
        )
        if tracker.error is not None and watch_request.has_history():
            terminal_output.print_note(f"  history: noetl events {watch_request.execution_id}")
        # A run in this process keeps no items that a server could tell of.
        if watch_request.attach and tracker.has_failed_items:
            failed_items = error_text.format_failed_items(
                watch_request.execution_id, whole_step=tracker.find_whole_step()
            )
            terminal_output.print_note(failed_items)
    if watch_request.show_result is not None and tracker.status is ExecutionStatus.COMPLETED:
        watch_request.show_result()
    return choose_exit_code(tracker)


def choose_exit_code(tracker: ProgressTracker) -> ExitCode:
    """Translate an outcome for the shell."""
    match tracker.status:
        case ExecutionStatus.COMPLETED:
            return ExitCode.PARTIAL if tracker.has_failures else ExitCode.OK
        case ExecutionStatus.CANCELLED:
            return ExitCode.CANCELLED
        case _:
            return ExitCode.FAILED


def print_conclusion(
    tracker: ProgressTracker, *, write: Callable[[str], None] = terminal_output.print_line
) -> None:
    """Say how it ended."""
    started, ended = tracker.started_at, tracker.ended_at
    seconds = (ended - started).total_seconds() if started and ended else 0.0
    rows = f", {tracker.rows:,} rows" if tracker.rows else ""
    retries = f", {tracker.retries:,} retries" if tracker.retries else ""
    write(f"{tracker.status} in {seconds:.1f} s{rows}{retries}")
    if tracker.error is not None:
        for text in error_text.format_error_lines(
            codec.to_builtins(tracker.error), step=tracker.failed_step
        ):
            terminal_output.print_note(text)


def _show_events(
    watch_request: WatchRequest, tracker: ProgressTracker, screen: Display, deadline: float | None
) -> bool:
    """Feed events until the end; return whether a person has cancelled on the way."""
    is_cancelled = False
    with screen:
        source = watch_request.events(screen.show_notice)
        while not tracker.is_over:
            try:
                view = next(source)
                if isinstance(view, StepProgress):
                    screen.show_progress(view)
                elif view is not None:
                    screen.show_event(view, tracker.count_event(view), tracker)
                if deadline is not None and time.monotonic() > deadline and not tracker.is_over:
                    raise WatchTimeoutError
            except StopIteration:
                break
            except KeyboardInterrupt:
                if is_cancelled or not _has_confirmed_cancel(watch_request, screen):
                    break
                is_cancelled = True
                watch_request.cancel()
                screen.show_notice("cancelling; waiting for work in flight to stop")
                source = watch_request.events(screen.show_notice)
    return is_cancelled


def _has_confirmed_cancel(watch_request: WatchRequest, screen: Display) -> bool:
    """Give a person who pressed Ctrl-C the time to press it again."""
    if not watch_request.attach:
        return True
    screen.show_notice(
        f"detaching; Ctrl-C again within {SECOND_THOUGHT_S:g} s cancels the execution"
    )
    try:
        time.sleep(SECOND_THOUGHT_S)
    except KeyboardInterrupt:
        return True
    return False


def _note_detached(watch_request: WatchRequest) -> ExitCode:
    terminal_output.print_note(
        f"Detached; the execution goes on. Watch it again: {watch_request.attach}"
    )
    return ExitCode.OK
