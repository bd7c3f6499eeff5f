"""High-water marks: nobody who looks each minute misses the highest, and nothing stays for ever."""

from opentelemetry.metrics import CallbackOptions

from noetl_chassis.observability import instruments, names
from noetl_chassis.observability.connection_gauges import show_connection_peaks
from noetl_storage.process.connection_peaks import WINDOW_S, ConnectionPeaks, HighWaterMark


class Seconds:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_highest_stays_for_a_window_and_no_longer() -> None:
    clock = Seconds()
    mark = HighWaterMark(clock)
    for by in (1, 1, 1, -1, -1):
        mark.change_level(by)
    assert (mark.level, mark.read_highest()) == (1, 3)
    clock.now_s = WINDOW_S
    assert mark.read_highest() == 3
    mark.change_level(1)
    clock.now_s = 2 * WINDOW_S
    assert mark.read_highest() == 2
    clock.now_s = 9 * WINDOW_S
    assert mark.read_highest() == 2, "nothing was given back"
    mark.change_level(-2)
    assert mark.read_highest() == 2
    clock.now_s = 11 * WINDOW_S
    assert mark.read_highest() == 0


def test_a_scrape_reads_the_mark() -> None:
    peaks = ConnectionPeaks()
    show_connection_peaks(peaks, database="of-this-test")
    peaks.in_use.change_level(4)
    peaks.in_use.change_level(-4)
    gauge = instruments._get_gauge(names.CONNECTIONS_PEAK)  # a process has one telemetry
    shown = {
        (value.attributes or {})["database"]: value.value
        for value in gauge._observe_values(CallbackOptions())
    }
    assert shown["of-this-test"] == 4
