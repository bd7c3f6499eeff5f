"""Redirects the output of Spark's Java process away from the terminal.

Java (log4j) knows no tasks. Where standard error is a terminal the process runs the work of one
person, and a line goes to the log of the task that runs. Anywhere else it stays where the
process's own output goes, since tasks of several tenants may share a Java process.
"""

import os
import subprocess
import sys
import threading
from typing import IO, Any

from noetl_worker.spark.driver_output import shared_lines

_LINE_BYTES_MAX = 16 * 1024
_STDERR_FILE = 2


def pipe_options() -> dict[str, Any]:
    """Return how the process is to be started: with a pipe where its output would be seen."""
    if not os.isatty(_STDERR_FILE):
        return {}
    return {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}


def read_lines(process: "subprocess.Popen[bytes]") -> threading.Thread | None:
    """Take what a process writes until it ends, in a thread; None without a pipe."""
    if process.stdout is None:
        return None
    thread = threading.Thread(
        target=_read, args=(process.stdout,), name="spark-java-output", daemon=True
    )
    thread.start()
    return thread


def _read(pipe: IO[bytes]) -> None:
    with pipe:
        while data := pipe.readline(_LINE_BYTES_MAX):
            text = data.decode(errors="backslashreplace")
            shared_lines.add(text if text.endswith("\n") else f"{text}\n")
    # Why Java ended before any task ran stands nowhere else.
    if sys.__stderr__ is not None:
        sys.__stderr__.write("".join(shared_lines.take_waiting()))
