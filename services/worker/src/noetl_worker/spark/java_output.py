"""Redirects the output of Spark's Java process away from the terminal.

Java (log4j) knows no tasks. Where standard error is a terminal the process runs the work of one
person, and a line goes to the log of the task that runs. Anywhere else it stays where the
process's own output goes, since tasks of several tenants may share a Java process.
"""

import os
import re
import subprocess
import sys
import threading
from collections import deque
from typing import IO, Any

from noetl_worker.spark.driver_output import shared_lines

_LINE_BYTES_MAX = 16 * 1024
_STDERR_FILE = 2
_REASONS_MAX = 3
_REASON_CHARACTERS = 600
# The lines with which Spark's launcher and Java say why they do not start.
_REASON = re.compile(
    r"^(Exception in thread|Caused by:|Error[: ]|Invalid |Unrecognized |Could not |.*\bError: "
    r"|.*unresolved dependency|.*UNRESOLVED|.*[\w.]+Exception: )"
)
_LAST_LINES_S = 1.0
_readers: list[threading.Thread] = []
_recent: deque[str] = deque(maxlen=200)


def pipe_options() -> dict[str, Any]:
    """Return how the process is to be started: with a pipe, from which its output goes on."""
    return {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}


def read_lines(process: "subprocess.Popen[bytes]") -> threading.Thread | None:
    """Take what a process writes until it ends, in a thread; None without a pipe."""
    if process.stdout is None:
        return None
    _recent.clear()
    _readers.clear()
    thread = threading.Thread(
        target=_read,
        args=(process.stdout, os.isatty(_STDERR_FILE)),
        name="spark-java-output",
        daemon=True,
    )
    _readers.append(thread)
    thread.start()
    return thread


def describe_reason() -> str:
    """Return what the latest process has last said of its failure, "" if it said nothing of it."""
    for reader in _readers:
        # A process that has ended may have left lines that are not read yet.
        reader.join(_LAST_LINES_S)
    reasons = [line.strip() for line in list(_recent) if _REASON.search(line)]
    return "; ".join(dict.fromkeys(reasons[:_REASONS_MAX]))[:_REASON_CHARACTERS]


def _read(pipe: IO[bytes], is_seen: bool) -> None:  # noqa: FBT001 - an argument of a thread
    with pipe:
        while data := pipe.readline(_LINE_BYTES_MAX):
            text = data.decode(errors="backslashreplace")
            _recent.append(text)
            if is_seen:
                shared_lines.add(text if text.endswith("\n") else f"{text}\n")
            else:
                os.write(_STDERR_FILE, data)
    # Why Java ended before any task ran stands nowhere else.
    if is_seen and sys.__stderr__ is not None:
        sys.__stderr__.write("".join(shared_lines.take_waiting()))
