"""How many bytes all processes of a node hold in segments: one number in one locked file."""

import fcntl
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_NUMBER = struct.Struct("<Q")
_TRIES_MAX = 3


class SegmentBudget:
    """Admits bytes up to a bound.

    Nobody waits for it: who finds it locked does without. What is lost by a process that dies
    between taking and using is found again by the next `recount_bytes`.
    """

    def __init__(self, file: Path, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Threads of one process share the file's lock.
        self._mutex = threading.Lock()

    def take_bytes(self, count_bytes: int) -> bool:
        """Take room for so many bytes; False when there is none, or nobody can say."""
        with self._try_locked() as is_locked:
            if not is_locked:
                return False
            used = self.read_used_bytes()
            if used + count_bytes > self._bytes_max:
                return False
            self._write_used(used + count_bytes)
            return True

    def give_back_bytes(self, count_bytes: int) -> None:
        """Give room back; where the file is locked the next recount does it."""
        with self._try_locked() as is_locked:
            if is_locked:
                self._write_used(max(0, self.read_used_bytes() - count_bytes))

    def recount_bytes(self, measure: Callable[[], int]) -> bool:
        """Set the number to what is there, while nobody takes or gives; False when it is locked."""
        with self._try_locked() as is_locked:
            if is_locked:
                self._write_used(measure())
            return is_locked

    def read_used_bytes(self) -> int:
        """Return the bytes in use; a file that is too short counts as empty."""
        data = os.pread(self._descriptor, _NUMBER.size, 0)
        return int(_NUMBER.unpack(data)[0]) if len(data) == _NUMBER.size else 0

    def close(self) -> None:
        """Let the file go."""
        os.close(self._descriptor)

    def _write_used(self, used: int) -> None:
        os.pwrite(self._descriptor, _NUMBER.pack(used), 0)

    @contextmanager
    def _try_locked(self) -> Iterator[bool]:
        if not self._mutex.acquire(blocking=False):
            yield False
            return
        try:
            if not self._try_lock_file():
                yield False
                return
            try:
                yield True
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._mutex.release()

    def _try_lock_file(self) -> bool:
        for _ in range(_TRIES_MAX):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.sched_yield()
            else:
                return True
        return False
