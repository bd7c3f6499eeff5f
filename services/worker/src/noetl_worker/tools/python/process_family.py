"""The processes beside a Python process: those that its calls have left behind.

The launcher, or the first process of a space of processes, becomes the parent of every orphan. A
process that left its session and its parents is therefore a child of it, and found there.
"""

import os

from msgspec import Struct

# One child more than the known one is enough to be seen.
_CHILDREN_BYTES_MAX = 4096


class ProcessFamily(Struct, frozen=True, kw_only=True):
    """A process that runs calls, and the one that takes in what they leave behind."""

    process: int
    parent: int

    def has_grown(self) -> bool:
        """Tell whether there are other processes; also when this one has ended."""
        # In this order: a child that loses its parent meanwhile is found by the second look.
        has_children = bool(_list_children(self.process))
        return has_children or _list_children(self.parent) != [self.process]


def find_family(launcher: int) -> ProcessFamily | None:
    """Find the process that runs calls below its launcher, before the first of them.

    None where the system tells nothing of children.
    """
    parent, process = launcher, launcher
    while children := _list_children(process):
        parent, process = process, children[0]
    return None if process == launcher else ProcessFamily(process=process, parent=parent)


def _list_children(process: int) -> list[int]:
    """List the children of every thread of a process; none where it is gone."""
    found: list[int] = []
    try:
        # This is done after every call: paths of pathlib would take most of its time.
        with os.scandir(f"/proc/{process}/task") as threads:
            for thread in threads:
                found += map(int, _read_file(f"{thread.path}/children").split())
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found


def _read_file(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _CHILDREN_BYTES_MAX)
    finally:
        os.close(descriptor)
