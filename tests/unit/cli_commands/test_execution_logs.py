"""Lines of tasks on a terminal: each once, one to a line, and harmless."""

from typing import Any

import pytest
from tests.support.canned_api import serve_answers
from typer.testing import CliRunner

from noetl_cli.__main__ import app
from noetl_cli.errors import CliError
from noetl_cli.planner.execution_logs import LogPrinter, format_log_line, parse_logs_request


def line_of(text: str, **more: Any) -> dict[str, Any]:
    return {
        "log": "5.1.00000005",
        "sequence": 1,
        "at": "2026-11-26T23:59:01.123456Z",
        "step": "load",
        "task": "load_task",
        "unit": "step",
        "row_index": None,
        "attempt": 1,
        "task_attempt": 2,
        "stream": "stdout",
        "level": "",
        "text": text,
        **more,
    }


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (line_of("hi"), "23:59:01.123 load #1.2 stdout: hi"),
        (
            line_of("no", stream="logging", level="error", task="get", unit="item-3"),
            "23:59:01.123 load/get item-3 #1.2 error: no",
        ),
        (line_of("a\rb", row_index=4), "23:59:01.123 load row 4 #1.2 stdout: a\\rb"),
    ],
)
def test_a_line_says_when_where_and_how(line: dict[str, Any], shown: str) -> None:
    assert format_log_line(line) == shown


def test_control_characters_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    LogPrinter(as_json=False).print_line(line_of("\x1b[2Jgone\x07\x9b"))
    written = capsys.readouterr().out
    assert "\\x1b[2Jgone\\x07\\x9b" in written
    assert "\x1b" not in written


def test_a_line_that_comes_again_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    printer = LogPrinter(as_json=False)
    printer.skip_line(line_of("before", sequence=1))
    for sequence in (1, 2, 3, 2, 3, 4):
        printer.print_line(line_of(f"line {sequence}", sequence=sequence))
    printer.print_line(line_of("of another log", log="6.1.00000006"))
    printer.print_line(line_of("notice", sequence=0))
    printer.print_line(line_of("notice", sequence=0))
    texts = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    assert texts == ["line 2", "line 3", "line 4", "of another log", "notice", "notice"]


def test_logs_are_of_one_execution_and_one_step() -> None:
    logs_request = parse_logs_request(["7", "load it"], lines=None, follow=True, as_json=False)
    assert (logs_request.stream_address, logs_request.step) == ("/api/executions/7/logs", "load it")
    with pytest.raises(CliError, match="one execution"):
        parse_logs_request(["7", "load", "save"], lines=None, follow=True, as_json=False)


@pytest.mark.parametrize("lines", [[], [line_of("it failed")]])
def test_the_planner_is_asked_for_the_lines_that_are_looked_for(lines: list[Any]) -> None:
    page = {"lines": lines, "next_after": "x", "has_more": False, "note": ""}
    options = ["--search", "failed", "--stream", "stdout", "--attempt", "2"]
    with serve_answers({"GET /api/executions/7/logs": (200, page)}) as api:
        done = CliRunner().invoke(app, ["logs", "7", "load", *options, "--server", api.url])
    assert done.exit_code == 0, done.output
    (asked,) = api.asked
    assert "step=load&text=failed&stream=stdout&attempt=2" in asked
    assert ("it failed" in done.stdout, "No line" in done.stderr) == (bool(lines), not lines)


def test_processes_of_the_stack_are_not_searched() -> None:
    done = CliRunner().invoke(app, ["logs", "planner", "--search", "failed"])
    assert isinstance(done.exception, CliError)
    assert "of an execution" in str(done.exception)
