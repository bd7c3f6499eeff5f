"""An error of an execution, written for people."""

from collections.abc import Mapping
from typing import Any

from noetl_cli import terminal_output
from noetl_cli.terminal.progress_tracker import (
    format_error,
    format_try,
    has_own_name,
    split_statement_place,
)

_TRACEBACK_LINES_MAX = 40
_INDENT_MAX = 100
_HEAD = "Traceback (most recent call last):"
_OWN_HEAD = "In the code of the task, most recent call last:"


def format_error_lines(error: Mapping[str, Any], *, step: str | None = None) -> list[str]:
    """Write an error: the attempts before it, where and what, and what the author's code said.

    Each line is one of the terminal: it holds no control characters.
    """
    where = step or error.get("step")
    task = error.get("task")
    place = f" in step {where}" if where else ""
    if place and has_own_name(task, where):
        place += f", task {task}"
    tries = error.get("tries")
    lines = _try_lines(tries, where) if isinstance(tries, list) else []
    lines += [terminal_output.flatten_text(f"error{place}: {format_error(error)}")]
    lines += [f"  {_escape_code_line(line)}" for line in split_statement_place(error)[1]]
    details = error.get("details")
    if isinstance(details, Mapping):
        lines += _format_traceback_lines(details.get("traceback"))
        stderr = details.get("stderr")
        lines += (
            [f"  {_escape_code_line(str(line))}" for line in stderr]
            if isinstance(stderr, list)
            else []
        )
    return lines


def format_failed_items(execution_id: str, *, is_over: bool = True) -> str:
    """Name the commands that show the failed items of loops and run them again."""
    again = f"; run them again: noetl rerun {execution_id} --failed" if is_over else ""
    return f"  failed items: noetl items {execution_id} --failed{again}"


def _try_lines(tries: list[Mapping[str, Any]], step: str | None) -> list[str]:
    """Write the attempts that failed before, one a line, and which of them are not kept."""
    lines = [terminal_output.flatten_text(f"  {format_try(item, step=step)}") for item in tries]
    first = int(tries[0].get("attempt", 1)) if tries else 1
    head = [f"  (attempts before {first} are not kept)"] if first > 1 else []
    return head + [f"  {line}" for line in lines]


def _format_traceback_lines(traceback: Any) -> list[str]:
    """Indent a traceback; of a long one the last lines are shown, and how many are not."""
    if not isinstance(traceback, str):
        return []
    # The usual head would read as a crash of the command line itself.
    lines = traceback.rstrip().replace(_HEAD, _OWN_HEAD).splitlines()
    hidden = max(0, len(lines) - _TRACEBACK_LINES_MAX)
    head = [f"  ({hidden} lines of the traceback are left out)"] if hidden else []
    return head + [f"  {_escape_code_line(line)}" for line in lines[hidden:]]


def _escape_code_line(line: str) -> str:
    """Keep the indent of a line of code, and nothing that a terminal would obey."""
    text = line.lstrip(" ")
    return " " * min(len(line) - len(text), _INDENT_MAX) + terminal_output.flatten_text(text)
