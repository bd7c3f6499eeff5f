"""What a stack holds while something runs: memory by part, connections of the database."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from msgspec import Struct, field
from tests.bench.cpu import processes
from tests.support.stack import Stack

_EVERY_S = 1.0
_MIB = 2**20


class HighWater(Struct):
    """The most that was seen: MiB by part (shared pages divided), connections of PostgreSQL."""

    memory_mib: dict[str, int] = field(default_factory=dict)
    connections: int = 0


@contextmanager
def high_water(stack: Stack) -> Iterator[HighWater]:
    """Look once a second until the block ends."""
    seen, is_over = HighWater(), threading.Event()

    def look() -> None:
        while not is_over.wait(_EVERY_S):
            _look(stack, seen)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        is_over.set()
        watcher.join()


def _look(stack: Stack, seen: HighWater) -> None:
    memory: Counter[str] = Counter()
    connections = 0
    for part, process in processes(stack):
        try:
            memory[part] += process.memory_full_info().pss
            connections += part == "postgres" and "127.0.0.1(" in " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue  # ended between the listing and the look
    for part, found in memory.items():
        seen.memory_mib[part] = max(seen.memory_mib.get(part, 0), found // _MIB)
    seen.connections = max(seen.connections, connections)
