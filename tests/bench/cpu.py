"""CPU seconds of running processes, and waits for a processor: a stack's by part, or a family's."""

from collections.abc import Iterator
from pathlib import Path

import psutil
from msgspec import Struct
from tests.support.stack import Stack


def processes(stack: Stack, **others: int) -> Iterator[tuple[str, psutil.Process]]:
    """Each process with the part that it belongs to; children count to their parent's part.

    `others` are processes beside the stack's, by name.
    """
    state = stack.state["processes"]
    pids = {name: found["pid"] for name, found in state.items() if found["pid"]} | others
    below = _children()
    for name, pid in pids.items():
        part = name.rpartition("-")[0] or name
        family = [psutil.Process(pid)]
        for each in family:
            family += below.get(each.pid, ())
        yield from ((part, each) for each in family)


def _children() -> dict[int, list[psutil.Process]]:
    """Find the children of every process, in one look at the machine."""
    found: dict[int, list[psutil.Process]] = {}
    for each in psutil.process_iter(["ppid"]):
        found.setdefault(each.info["ppid"], []).append(each)
    return found


def spent(stack: Stack, **others: int) -> dict[str, float]:
    """Count CPU seconds so far, by part, those of ended children with them."""
    seconds: dict[str, float] = {}
    for part, process in processes(stack, **others):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # its parent tells of it from now on
        ended = times.children_user + times.children_system
        seconds[part] = seconds.get(part, 0.0) + times.user + times.system + ended
    return seconds


class Readiness(Struct, frozen=True, kw_only=True):
    """How long threads ran, and how long they were ready and waited for a processor; seconds."""

    ran_s: float = 0.0
    waited_s: float = 0.0

    def __add__(self, other: "Readiness") -> "Readiness":
        return Readiness(ran_s=self.ran_s + other.ran_s, waited_s=self.waited_s + other.waited_s)

    def __sub__(self, other: "Readiness") -> "Readiness":
        return Readiness(ran_s=self.ran_s - other.ran_s, waited_s=self.waited_s - other.waited_s)


def readiness(stack: Stack) -> dict[str, Readiness]:
    """Read how ready each part's processes were so far (Linux, `/proc/PID/task/TID/schedstat`)."""
    found: dict[str, Readiness] = {}
    for part, process in processes(stack):
        for file in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            try:
                ran, waited, _ = map(int, file.read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended between the listing and the look
            ready = Readiness(ran_s=ran / 1e9, waited_s=waited / 1e9)
            found[part] = found.get(part, Readiness()) + ready
    return found


def family_cpu_s(leader: psutil.Process) -> float:
    """Count CPU seconds of a process with all of its children, also those that have ended."""
    total = 0.0
    for each in [leader, *leader.children(recursive=True)]:
        times = each.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total
