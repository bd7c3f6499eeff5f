"""A watched computation of the main thread ends when it takes too much; others go on."""

import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from noetl_chassis.deadline import Deadline, watching


class TooMuchError(Exception):
    pass


@pytest.fixture
def deadline() -> Iterator[Deadline]:
    with watching() as found:
        yield found


def spin() -> None:
    while True:
        continue


def grow(kept: list[str]) -> None:
    while True:
        kept.append("x" * 100_000 + str(len(kept)))


def test_python_code_is_interrupted(deadline: Deadline) -> None:
    assert deadline.arm(0.1, TooMuchError)
    with pytest.raises(TooMuchError, match=r"longer than 0\.1 s"):
        spin()
    deadline.disarm()


def test_the_matching_of_a_regular_expression_is_interrupted(deadline: Deadline) -> None:
    assert deadline.arm(0.1, TooMuchError)
    with pytest.raises(TooMuchError):
        re.search("(a+)+$", "a" * 64 + "!")
    deadline.disarm()


def test_growth_is_interrupted_before_the_time_is_over() -> None:
    deadline = Deadline(growth_bytes_max=32 * 1024 * 1024)
    former = signal.signal(signal.SIGVTALRM, deadline.tick)
    kept: list[str] = []
    try:
        assert deadline.arm(60, TooMuchError)
        with pytest.raises(TooMuchError, match="bytes of memory"):
            grow(kept)
    finally:
        deadline.disarm()
        signal.signal(signal.SIGVTALRM, former)
    assert len(kept) < 100_000


def test_what_ends_in_time_is_left_alone_afterwards(deadline: Deadline) -> None:
    assert deadline.arm(0.05, TooMuchError)
    deadline.disarm()
    assert sum(range(5_000_000)) > 0
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_one_computation_is_watched_at_a_time_and_in_the_main_thread_alone(
    deadline: Deadline,
) -> None:
    assert deadline.arm(10, TooMuchError)
    assert not deadline.arm(10, TooMuchError)
    deadline.disarm()
    armed: list[bool] = []
    thread = threading.Thread(target=lambda: armed.append(deadline.arm(10, TooMuchError)))
    thread.start()
    thread.join()
    assert armed == [False]


def test_the_signal_is_given_back() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    with watching():
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


def test_a_finalizer_is_left_alone_and_the_computation_ends_after_it(deadline: Deadline) -> None:
    """An error raised in there would go nowhere."""
    assert deadline.arm(0.1, TooMuchError)
    with pytest.raises(TooMuchError):
        _let_go_and_spin()
    deadline.disarm()


def test_a_callback_that_takes_the_error_only_delays_the_end(deadline: Deadline) -> None:
    """Pytest would tell of an error that nobody caught."""
    kept = [Kept()]
    forgotten = weakref.ref(kept[0], lambda _gone: _work())
    assert deadline.arm(0.1, TooMuchError)
    with pytest.raises(TooMuchError):
        _forget_and_spin(kept)
    deadline.disarm()
    assert forgotten() is None


def test_an_error_of_others_that_nobody_catches_is_told() -> None:
    told: list[str] = []
    former, sys.unraisablehook = sys.unraisablehook, lambda lost: told.append(str(lost.exc_value))
    try:
        with watching():
            kept = [Kept()]
            forgotten = weakref.ref(kept[0], lambda _gone: 1 // 0)
            kept.clear()
        assert forgotten() is None
    finally:
        sys.unraisablehook = former
    assert told == ["integer division or modulo by zero"]


class Kept:
    """Something to be forgotten."""


def _forget_and_spin(kept: list[Kept]) -> None:
    kept.clear()
    spin()


def _let_go_and_spin() -> None:
    Lingering()
    spin()
