"""Ends a computation of the main thread that takes too much time or memory.

A timer of the processor time that this process spends interrupts Python code and the matching of
regular expressions alike; armed for what may be expensive, it costs two system calls.
"""

import gc
import resource
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import NoReturn

_CALLBACK_FILES = frozenset(
    item.__init__.__code__.co_filename for item in (weakref.WeakSet, weakref.WeakValueDictionary)
)
# How far below a finalizer the interrupted frame may be.
_FINALIZER_DEPTH = 8
_TICK_S = 0.05
_TICK_MIN_S = 0.001
# What differences of clock readings lose: the first tick is to end what has that much time.
_CLOCK_ERROR_S = 1e-6
_GROWTH_BYTES_MAX = 1024 * 1024 * 1024
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = resource.getpagesize()


class ComputationDeadline:
    """Watches over one computation at a time; elsewhere than in the main thread over none."""

    def __init__(self, *, growth_bytes_max: int = _GROWTH_BYTES_MAX) -> None:
        self._growth_bytes_max = growth_bytes_max
        self._main = threading.main_thread().ident
        self._is_armed = False
        self._is_looking = False
        self._seconds = 0.0
        self._tick_s = _TICK_S
        self._error: Callable[[str], Exception] = TimeoutError
        self._raised_error: Exception | None = None
        self._began_at: float | None = None
        self._bytes_before = 0

    def start_watch(self, seconds: float, error: Callable[[str], Exception]) -> bool:
        """Begin to watch; False inside a computation that is watched, or in another thread."""
        if self._is_armed or threading.get_ident() != self._main:
            return False
        self._seconds = seconds
        self._error = error
        self._began_at = None
        self._is_armed = True
        self._tick_s = min(_TICK_S, max(seconds, _TICK_MIN_S))
        signal.setitimer(signal.ITIMER_VIRTUAL, self._tick_s, _TICK_S)
        return True

    def stop_watch(self) -> None:
        """End watching."""
        self._is_armed = False
        self._raised_error = None
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def is_own_error(self, error: BaseException | None) -> bool:
        """Tell whether an error is the watched computation's own: the next tick raises another."""
        return error is not None and error is self._raised_error

    def check_on_tick(self, _number: int, frame: FrameType | None) -> None:
        """Look at the clock and at the memory; raises the error that `start_watch` was given."""
        if not self._is_armed or self._is_looking or _is_in_callback(frame):
            return
        # The next tick may come while this one looks.
        self._is_looking = True
        try:
            self._check_limits()
        finally:
            self._is_looking = False

    def _check_limits(self) -> None:
        now = time.thread_time()
        if self._began_at is None:
            # What was spent before the first tick is a tick; nothing is measured when arming.
            self._began_at = now - self._tick_s
            self._bytes_before = _read_resident_bytes()
        if now - self._began_at >= self._seconds - _CLOCK_ERROR_S:
            self._raise_excess(f"longer than {self._seconds:g} s")
        if _read_resident_bytes() - self._bytes_before > self._growth_bytes_max:
            self._raise_excess(f"more than {self._growth_bytes_max} bytes of memory")

    def _raise_excess(self, excess: str) -> NoReturn:
        self._raised_error = self._error(f"the template takes {excess}")
        raise self._raised_error


def _is_in_callback(frame: FrameType | None) -> bool:
    """Tell whether a collector's or weak reference's callback or a finalizer runs.

    Their errors go nowhere, and the computation would not end.
    """
    for _ in range(_FINALIZER_DEPTH):
        if frame is None:
            return False
        if _is_error_dropped(frame.f_code):
            return True
        frame = frame.f_back
    return False


def _is_error_dropped(code: CodeType) -> bool:
    is_callback = code.co_filename in _CALLBACK_FILES or code.co_name == "__del__"
    return is_callback or any(
        getattr(callback, "__code__", None) is code for callback in gc.callbacks
    )


def _read_resident_bytes() -> int:
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def own_deadline_timer() -> Iterator[ComputationDeadline]:
    """Own the process's timer while the block runs; in another thread there is nothing to own."""
    deadline = ComputationDeadline()
    if threading.current_thread() is not threading.main_thread():
        yield deadline
        return
    former = signal.signal(signal.SIGVTALRM, deadline.check_on_tick)
    tell = sys.unraisablehook

    def report_other_errors(lost: "sys.UnraisableHookArgs") -> None:
        if not deadline.is_own_error(lost.exc_value):
            tell(lost)

    # A callback that nobody can be seen to call may take the error; it is raised again.
    sys.unraisablehook = report_other_errors
    try:
        yield deadline
    finally:
        deadline.stop_watch()
        sys.unraisablehook = tell
        signal.signal(signal.SIGVTALRM, former)
