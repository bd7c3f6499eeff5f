"""The processes beside a Python process: those that its calls have left behind.

The launcher, or the first process of a space of processes, becomes the parent of every orphan. A
process that left its session and its parents is therefore a child of it, and found there.
"""

import os

# One child more than the known one is enough to be seen.
_CHILDREN_BYTES_MAX = 4096
# The folder of a process's threads: itself, its parent, and one entry for each thread.
_LINKS_OF_ONE_THREAD = 3


class ProcessFamily:
    """A process that runs calls, and the one that takes in what they leave behind."""

    def __init__(self, *, process: int, parent: int) -> None:
        """Open what the system tells of both; raises `OSError` where one of them is gone."""
        self._process = process
        self._of_process = _ChildList(process)
        try:
            self._of_parent = _ChildList(parent)
        except OSError:
            self._of_process.close()
            raise

    def has_grown(self) -> bool:
        """Tell whether there are other processes; also when this one has ended."""
        # In this order: a child that loses its parent meanwhile is found by the second look.
        has_children = bool(self._of_process.read_children())
        return has_children or self._of_parent.read_children() != [self._process]

    def close(self) -> None:
        """Look no more."""
        self._of_process.close()
        self._of_parent.close()


class _ChildList:
    """The children of one process, read after every call: its files stay open for that."""

    def __init__(self, process: int) -> None:
        self._process = process
        threads = f"/proc/{process}/task"
        self._threads = os.open(threads, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._children = os.open(f"{threads}/{process}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._threads)
            raise

    def read_children(self) -> list[int]:
        """List the children of every thread; none where the process is gone."""
        if os.fstat(self._threads).st_nlink != _LINKS_OF_ONE_THREAD:
            return _list_children(self._process)
        try:
            return list(map(int, os.pread(self._children, _CHILDREN_BYTES_MAX, 0).split()))
        except ProcessLookupError:
            return []

    def close(self) -> None:
        os.close(self._threads)
        os.close(self._children)


def find_family(launcher: int) -> ProcessFamily | None:
    """Find the process that runs calls below its launcher, before the first of them.

    None where the system tells nothing of children, and where they are gone already.
    """
    parent, process = launcher, launcher
    while children := _list_children(process):
        parent, process = process, children[0]
    if process == launcher:
        return None
    try:
        return ProcessFamily(process=process, parent=parent)
    except (FileNotFoundError, ProcessLookupError):
        return None


def _list_children(process: int) -> list[int]:
    """List the children of every thread of a process; none where it is gone."""
    children: list[int] = []
    try:
        with os.scandir(f"/proc/{process}/task") as threads:
            for thread in threads:
                children += map(int, _read_file(f"{thread.path}/children").split())
    except (FileNotFoundError, ProcessLookupError):
        return children
    return children


def _read_file(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _CHILDREN_BYTES_MAX)
    finally:
        os.close(descriptor)
