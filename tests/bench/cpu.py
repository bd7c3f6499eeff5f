"""CPU seconds of running processes, and waits for a processor: a stack's by part, or a family's."""

from collections.abc import Iterator
from pathlib import Path

import psutil
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
        for item in family:
            family += below.get(item.pid, ())
        yield from ((part, item) for item in family)


def _children() -> dict[int, list[psutil.Process]]:
    """Find the children of every process, in one look at the machine."""
    found: dict[int, list[psutil.Process]] = {}
    for item in psutil.process_iter(["ppid"]):
        found.setdefault(item.info["ppid"], []).append(item)
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


def readiness(stack: Stack) -> dict[str, tuple[float, float]]:
    """Return how long each part's processes ran so far, and were ready to run and waited; seconds.

    A process is its first thread, where an event loop runs (Linux, `/proc/PID/schedstat`).
    """
    found: dict[str, tuple[float, float]] = {}
    for part, process in processes(stack):
        try:
            output = Path(f"/proc/{process.pid}/schedstat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended between the listing and the look
        ran_ns, waited_ns, _ = map(int, output.split())
        ran_s, waited_s = found.get(part, (0.0, 0.0))
        found[part] = ran_s + ran_ns / 1e9, waited_s + waited_ns / 1e9
    return found


def family_cpu_s(leader: psutil.Process) -> float:
    """Count CPU seconds of a process with all of its children, also those that have ended."""
    total = 0.0
    for item in [leader, *leader.children(recursive=True)]:
        times = item.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total
