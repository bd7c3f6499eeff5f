"""Processes of a test, found by a word of their command: a task sees other numbers than a test."""

import os
from itertools import count

import psutil

_NUMBERS = count(1)


def make_nap() -> str:
    """A number of seconds to sleep that no other process sleeps."""
    return f"9{next(_NUMBERS):04}.{os.getpid()}"


def count_running(word: str) -> int:
    """Count the processes whose command holds a word, but for those that only wait for them."""
    return sum(_holds(process, word) for process in psutil.process_iter())


def _holds(process: psutil.Process, word: str) -> bool:
    try:
        is_ended = process.status() == psutil.STATUS_ZOMBIE
        return not is_ended and any(word == part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False
