"""Processes of a test, found by a word of their command: a task sees other numbers than a test."""

import os
from itertools import count
from pathlib import Path

import psutil

_NUMBERS = count(1)


def make_nap() -> str:
    """A number of seconds to sleep that no other process sleeps."""
    return f"9{next(_NUMBERS):04}.{os.getpid()}"


def count_running(word: str) -> int:
    """Count the processes whose command holds a word, but for those that only wait for them."""
    return len(list_running(word))


def list_running(word: str, *, below: psutil.Process | None = None) -> list[psutil.Process]:
    """List the processes whose command holds a word, or those of them that come from a process."""
    found = psutil.process_iter() if below is None else below.children(recursive=True)
    return [process for process in found if is_running(process) and _holds(process, word)]


def is_running(process: psutil.Process) -> bool:
    """Tell whether a process has not ended; nobody may have waited for one that has."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def list_below(pid: int | None) -> list[psutil.Process]:
    """List the processes that come from one, none when it has ended."""
    try:
        return [] if pid is None else psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def has_open(process: psutil.Process, name: str) -> bool:
    """Tell whether a process holds a file of that name open which nobody has removed."""
    try:
        targets = [link.readlink() for link in Path(f"/proc/{process.pid}/fd").iterdir()]
    except OSError:
        return False  # it, or what it held, has gone meanwhile
    return any(target.name == name for target in targets)


def _holds(process: psutil.Process, word: str) -> bool:
    try:
        return any(word == part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False
