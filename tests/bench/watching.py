"""What a stack holds while something runs: memory by part, connections of the database."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from msgspec import Struct, field
from tests.bench.cpu import processes
from tests.support.stack import Stack

CONTROL_PLANE = frozenset({"planner", "projector", "outbox", "reaper"})
_EVERY_S = 2.0
_MIB = 2**20


class HighWater(Struct):
    """The most that was seen: MiB by part (what its processes share, once), connections.

    `control_plane_mib` is what the control plane held at the end, what is shared once.
    """

    memory_mib: dict[str, int] = field(default_factory=dict)
    control_plane_mib: int = 0
    connections: int = 0


@contextmanager
def high_water(stack: Stack) -> Iterator[HighWater]:
    """Look every two seconds until the block ends."""
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
    seen.control_plane_mib = _control_plane(stack) // _MIB


def _look(stack: Stack, seen: HighWater) -> None:
    counter: Counter[str] = Counter()
    shared: Counter[str] = Counter()
    connections = 0
    for part, process in processes(stack):
        try:
            # Not the exact shares: to read those, the kernel holds up what is measured.
            memory = process.memory_info()
            connections += part == "postgres" and "127.0.0.1(" in " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue  # ended between the listing and the look
        counter[part] += memory.rss - memory.shared
        shared[part] = max(shared[part], memory.shared)
    for part in counter:
        found = (counter[part] + shared[part]) // _MIB
        seen.memory_mib[part] = max(seen.memory_mib.get(part, 0), found)
    seen.connections = max(seen.connections, connections)


def _control_plane(stack: Stack) -> int:
    """Count the bytes that several processes hold together: their own pages, and shared ones once.

    Of a file that several map, the pages that are shared are those of the process that has most.
    """
    own, shared = 0, Counter[str]()
    for part, process in processes(stack):
        if part in CONTROL_PLANE:
            for mapped in process.memory_maps(grouped=True):
                alone = mapped.private_clean + mapped.private_dirty
                own += alone
                shared[mapped.path] = max(shared[mapped.path], mapped.rss - alone)
    return own + shared.total()
