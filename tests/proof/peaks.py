"""The most memory that each part of a stack held, its Java processes counted apart."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from tests.support.stack import Stack

_EVERY_S = 1.0
_MIB = 2**20
JAVA = "java"
TASKS = "Python of Spark's tasks"


@contextmanager
def peaks(stack: Stack) -> Iterator[dict[str, int]]:
    """Look once a second, and at the end of the block: MiB by part, pages that are shared divided."""
    seen, is_over = dict[str, int](), threading.Event()

    def watch() -> None:
        is_last = False
        while not is_last:
            is_last = is_over.wait(_EVERY_S)
            for part, found in _look(stack).items():
                seen[part] = max(seen.get(part, 0), found // _MIB)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        is_over.set()
        watcher.join()


def _look(stack: Stack) -> Counter[str]:
    memory: Counter[str] = Counter()
    for name, found in stack.state["processes"].items():
        part = name.rpartition("-")[0] or name
        try:
            _add(memory, part, psutil.Process(found["pid"]))
        except psutil.NoSuchProcess:
            continue  # ended between the listing and the look
    return memory


def _add(memory: Counter[str], part: str, process: psutil.Process) -> None:
    """Count a process and all that it has started; what Java has started is Spark's own."""
    part = JAVA if process.name() == JAVA else part
    memory[part] += process.memory_full_info().pss
    for child in process.children():
        _add(memory, TASKS if part in {JAVA, TASKS} else part, child)


def high_water_mib(pid: int) -> int:
    """The most that a process ever held, mapped files and shared pages with it (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return int(lines["VmHWM"].split()[0]) // 1024
