"""A watched computation of the main thread ends when it takes too much; others go on."""

import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from noetl_chassis.computation_deadline import ComputationDeadline, own_deadline_timer


class TooMuchError(Exception):
    pass


@pytest.fixture
def deadline() -> Iterator[ComputationDeadline]:
    with own_deadline_timer() as deadline_timer:
        yield deadline_timer


def spin() -> None:
    while True:
        continue


def grow(kept: list[str]) -> None:
    while True:
        kept.append("x" * 100_000 + str(len(kept)))


def test_python_code_is_interrupted(deadline: ComputationDeadline) -> None:
    assert deadline.start_watch(0.1, TooMuchError)
    with pytest.raises(TooMuchError, match=r"longer than 0\.1 s"):
        spin()
    deadline.stop_watch()


def test_the_matching_of_a_regular_expression_is_interrupted(deadline: ComputationDeadline) -> None:
    assert deadline.start_watch(0.1, TooMuchError)
    with pytest.raises(TooMuchError):
        re.search("(a+)+$", "a" * 64 + "!")
    deadline.stop_watch()


def test_growth_is_interrupted_before_the_time_is_over() -> None:
    deadline = ComputationDeadline(growth_bytes_max=32 * 1024 * 1024)
    former = signal.signal(signal.SIGVTALRM, deadline.check_on_tick)
    kept: list[str] = []
    try:
        assert deadline.start_watch(60, TooMuchError)
        with pytest.raises(TooMuchError, match="bytes of memory"):
            grow(kept)
    finally:
        deadline.stop_watch()
        signal.signal(signal.SIGVTALRM, former)
    assert len(kept) < 100_000


def test_what_ends_in_time_is_left_alone_afterwards(deadline: ComputationDeadline) -> None:
    assert deadline.start_watch(0.05, TooMuchError)
    deadline.stop_watch()
    assert sum(range(5_000_000)) > 0
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_one_computation_is_watched_at_a_time_and_in_the_main_thread_alone(
    deadline: ComputationDeadline,
) -> None:
    assert deadline.start_watch(10, TooMuchError)
    assert not deadline.start_watch(10, TooMuchError)
    deadline.stop_watch()
    armed: list[bool] = []
    thread = threading.Thread(target=lambda: armed.append(deadline.start_watch(10, TooMuchError)))
    thread.start()
    thread.join()
    assert armed == [False]


def test_the_signal_is_given_back() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    with own_deadline_timer():
        assert signal.getsignal(signal.SIGVTALRM) != before
    assert signal.getsignal(signal.SIGVTALRM) == before


class Lingering:
    """Takes its time to go away, in a function below its finalizer."""

    def __del__(self) -> None:
        _work()


def _work() -> None:
    end = time.thread_time() + 0.3
    while time.thread_time() < end:
        sum(range(1000))


def test_a_finalizer_is_left_alone_and_the_computation_ends_after_it(
    deadline: ComputationDeadline,
) -> None:
    """An error raised in there would go nowhere."""
    assert deadline.start_watch(0.1, TooMuchError)
    with pytest.raises(TooMuchError):
        _let_go_and_spin()
    deadline.stop_watch()


def test_a_callback_that_takes_the_error_only_delays_the_end(deadline: ComputationDeadline) -> None:
    """Pytest would tell of an error that nobody caught."""
    kept = [DroppedException()]
    forgotten = weakref.ref(kept[0], lambda _gone: _work())
    assert deadline.start_watch(0.1, TooMuchError)
    with pytest.raises(TooMuchError):
        _forget_and_spin(kept)
    deadline.stop_watch()
    assert forgotten() is None


def test_an_error_of_others_that_nobody_catches_is_told() -> None:
    told: list[str] = []
    former, sys.unraisablehook = sys.unraisablehook, lambda lost: told.append(str(lost.exc_value))
    try:
        with own_deadline_timer():
            kept = [DroppedException()]
            forgotten = weakref.ref(kept[0], lambda _gone: 1 // 0)
            kept.clear()
        assert forgotten() is None
    finally:
        sys.unraisablehook = former
    assert told == ["integer division or modulo by zero"]


class DroppedException:
    """Something to be forgotten."""


def _forget_and_spin(dropped_exceptions: list[DroppedException]) -> None:
    dropped_exceptions.clear()
    spin()


def _let_go_and_spin() -> None:
    Lingering()
    spin()
