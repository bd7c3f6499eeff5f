"""Who made a segment: a process by number and start, because numbers are used again."""

import os
import re
from pathlib import Path

from msgspec import Struct

_PROCESSES = Path("/proc")
_STATE, _STARTED = 0, 19
_DEAD_STATES = frozenset({"Z", "X"})
_NAME = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)")


class Owner(Struct, frozen=True, kw_only=True):
    """A process: its number, its start in ticks since boot, and who numbers it."""

    pid: int
    started: int
    namespace: int

    def __str__(self) -> str:
        return f"{self.namespace}-{self.pid}-{self.started}"


def parse(text: str) -> Owner | None:
    """Read what `str` of an owner wrote, or None."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    namespace, pid, started = map(int, found.groups())
    return Owner(pid=pid, started=started, namespace=namespace)


def this_process() -> Owner | None:
    """Return this process, or None on a system without `/proc`."""
    found = _look(os.getpid())
    if found is None:
        return None
    return Owner(pid=os.getpid(), started=found[1], namespace=_namespace())


def is_alive(owner: Owner) -> bool | None:
    """Tell whether a process still runs; None when others number it and it cannot be seen."""
    if owner.namespace != _namespace():
        return None
    found = _look(owner.pid)
    return found is not None and found[0] not in _DEAD_STATES and found[1] == owner.started


def _look(pid: int) -> tuple[str, int] | None:
    """Return the state and the start of a process, or None when there is none."""
    try:
        text = (_PROCESSES / str(pid) / "stat").read_text(errors="replace")
        # The command stands in parentheses and may hold anything.
        fields = text.rpartition(")")[2].split()
        return fields[_STATE], int(fields[_STARTED])
    except (OSError, IndexError, ValueError):
        return None


def _namespace() -> int:
    """Return the number of the system's table of process numbers that this process sees."""
    try:
        return (_PROCESSES / "self/ns/pid").stat().st_ino
    except OSError:
        return 0
