"""What Spark's Java process writes goes to the task's log where a person would see it."""

import asyncio
import io
import os
import subprocess
import sys

import pytest

from noetl_contracts.log_chunks import STDERR
from noetl_worker.spark import java_output
from noetl_worker.spark.driver_output import DriverOutput, SharedLines

LINES = "import sys; print('WARN log4j'); print('ERROR Executor: lost', file=sys.stderr)"


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> SharedLines:
    """Lines of this test alone."""
    lines = SharedLines()
    monkeypatch.setattr(java_output, "shared_lines", lines)
    return lines


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A standard error that a person sees."""
    shown = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", shown)
    monkeypatch.setattr(os, "isatty", lambda _: True)
    return shown


class Log:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.written: list[tuple[str, bytes]] = []

    def write_output(self, stream: str, data: bytes) -> None:
        self.written.append((stream, data))


def run_java(code: str) -> None:
    """A process in the place of Java, until all that it wrote is read."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, **java_output.pipe_options()) as process:  # noqa: S603 - a program of this test
        reader = java_output.read_lines(process)
        assert reader is not None
        reader.join(30)
        assert not reader.is_alive()


async def test_lines_of_java_are_in_the_log_of_the_task_that_runs(
    terminal: io.StringIO, shared: SharedLines
) -> None:
    log = Log()
    output = DriverOutput(log, asyncio.get_running_loop())  # type: ignore[arg-type]  # its write

    def run() -> None:
        with shared.handed_to(output):
            run_java(LINES)

    await asyncio.to_thread(run)
    await asyncio.sleep(0)
    assert sorted(log.written) == [
        (STDERR, b"ERROR Executor: lost\n"),
        (STDERR, b"WARN log4j\n"),
    ]
    assert terminal.getvalue() == ""


def test_lines_of_a_java_that_ends_before_any_task_are_shown(
    terminal: io.StringIO, shared: SharedLines
) -> None:
    assert shared.take_waiting() == []
    run_java("print('no room for the heap')")
    assert terminal.getvalue() == "no room for the heap\n"


def test_output_that_no_person_watches_stays_with_the_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], shared: SharedLines
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: False)
    run_java("print('Exception in thread \"main\" java.lang.Exception: no heap'); print('at X')")
    assert "no heap\nat X\n" in capfd.readouterr().err
    assert shared.take_waiting() == []
    assert java_output.describe_reason() == (
        'Exception in thread "main" java.lang.Exception: no heap'
    )
    run_java("print('all is well')")
    assert java_output.describe_reason() == ""


async def test_lines_that_come_before_a_task_runs_wait_for_it(
    terminal: io.StringIO, shared: SharedLines
) -> None:
    log = Log()
    output = DriverOutput(log, asyncio.get_running_loop())  # type: ignore[arg-type]  # its write
    shared.add("Setting default log level\n")
    with shared.handed_to(output):
        pass
    await asyncio.sleep(0)
    assert log.written == [(STDERR, b"Setting default log level\n")]
    assert terminal.getvalue() == ""
    assert shared.take_waiting() == []
