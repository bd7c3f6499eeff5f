"""Records metrics on the instruments that `names` declares; does nothing without telemetry."""

from collections import deque
from collections.abc import Callable, Mapping
from functools import cache

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from noetl_chassis.observability import span_recording
from noetl_chassis.observability.names import Metric

SCOPE = "noetl"
# From a cached lookup to a frame that runs for minutes.
SECONDS_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
# From a status alone to more than an event may carry.
BYTES_BUCKETS = (64, 128, 256, 512, 1024, 2048, 4096, 16384, 65536)
# One by one, each with the caches full of something else, measurements take five times as long.
_TOGETHER = 64


def flush_histograms() -> None:
    """Have every histogram hold what was measured so far; to be called before they are read."""
    for histogram in _HISTOGRAMS:
        histogram.flush_values()


def add_to_counter(
    metric: Metric, amount: float = 1, *, labels: Mapping[str, str] | None = None
) -> None:
    """Add to a counter."""
    _get_counter(metric).get_sum(labels).add_amount(amount)


def begin_counter(metric: Metric, *, labels: Mapping[str, str] | None = None) -> None:
    """Show a counter at zero, so that a rate sees the first that it counts."""
    _get_counter(metric).get_sum(labels)


def get_counter_sum(metric: Metric, *, labels: Mapping[str, str] | None = None) -> "CounterSum":
    """Give a counter's sum for these labels, for those who add to it often."""
    return _get_counter(metric).get_sum(labels)


def record_measurement(
    metric: Metric, value: float, *, labels: Mapping[str, str] | None = None
) -> None:
    """Record one measurement of a histogram."""
    _get_histogram(metric).record_value(value, labels)


def set_gauge(metric: Metric, value: float, *, labels: Mapping[str, str] | None = None) -> None:
    """Set a gauge."""
    _get_gauge(metric).set_value(value, labels)


def read_gauge_from(
    metric: Metric, read_value: Callable[[], float], *, labels: Mapping[str, str] | None = None
) -> None:
    """Ask for a gauge's value at each scrape, from now on."""
    _get_gauge(metric).add_source(read_value, labels)


def clear_gauge(metric: Metric) -> None:
    """Show no value of a gauge any more: somebody else knows it now."""
    _get_gauge(metric).clear_values()


class CounterSum:
    """What was counted with the same labels."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total: float = 0

    def add_amount(self, amount: float = 1) -> None:
        """Count more."""
        self.total += amount


class _Counter:
    """Sums of one metric by label values, read when somebody scrapes.

    The SDK's own counters take a lock and copy the labels at every step, which is the price of
    several templates where tools are counted.
    """

    def __init__(self, metric: Metric) -> None:
        self._sums: dict[tuple[tuple[str, str], ...], CounterSum] = {}
        metrics.get_meter(SCOPE).create_observable_counter(
            metric.instrument_name,
            [self._observe_sums],
            unit=metric.unit,
            description=metric.meaning,
        )

    def get_sum(self, labels: Mapping[str, str] | None) -> CounterSum:
        """Give the sum of these labels."""
        key = tuple(labels.items()) if labels else ()
        counter_sum = self._sums.get(key)
        return counter_sum if counter_sum is not None else self._sums.setdefault(key, CounterSum())

    def _observe_sums(self, _options: CallbackOptions) -> list[Observation]:
        return [
            Observation(counter_sum.total, dict(key))
            for key, counter_sum in list(self._sums.items())
        ]


class _Gauge:
    """The latest values of one metric by label values, read when somebody scrapes."""

    def __init__(self, metric: Metric) -> None:
        self._values: dict[tuple[tuple[str, str], ...], float] = {}
        self._sources: dict[tuple[tuple[str, str], ...], Callable[[], float]] = {}
        metrics.get_meter(SCOPE).create_observable_gauge(
            metric.instrument_name,
            [self._observe_values],
            unit=metric.unit,
            description=metric.meaning,
        )

    def set_value(self, value: float, labels: Mapping[str, str] | None) -> None:
        """Put another value in the place of the latest of these labels."""
        self._values[tuple(labels.items()) if labels else ()] = value

    def add_source(self, read_value: Callable[[], float], labels: Mapping[str, str] | None) -> None:
        """Ask for the value of these labels when it is read."""
        self._sources[tuple(labels.items()) if labels else ()] = read_value

    def clear_values(self) -> None:
        """Forget every value."""
        self._values.clear()

    def _observe_values(self, _options: CallbackOptions) -> list[Observation]:
        values = list(self._values.items())
        values += [(key, read_value()) for key, read_value in list(self._sources.items())]
        return [Observation(value, dict(key)) for key, value in values]


class _Histogram:
    """Measurements of one metric, those that have not been told to the SDK yet beside it."""

    def __init__(self, metric: Metric) -> None:
        self._instrument = metrics.get_meter(SCOPE).create_histogram(
            metric.instrument_name,
            unit=metric.unit,
            description=metric.meaning,
            explicit_bucket_boundaries_advisory=(
                BYTES_BUCKETS if metric.unit == "By" else SECONDS_BUCKETS
            ),
        )
        # Several threads may add and take.
        self._pending_values: deque[tuple[float, Mapping[str, str] | None]] = deque()
        _HISTOGRAMS.append(self)

    def record_value(self, value: float, labels: Mapping[str, str] | None) -> None:
        """Keep one measurement."""
        if span_recording.are_spans_recorded():
            # Its example is the span that is current now.
            self._instrument.record(value, labels)
            return
        self._pending_values.append((value, labels))
        if len(self._pending_values) >= _TOGETHER:
            self.flush_values()

    def flush_values(self) -> None:
        """Tell the SDK what has gathered."""
        while self._pending_values:
            try:
                value, labels = self._pending_values.popleft()
            except IndexError:  # another thread has told it
                return
            self._instrument.record(value, labels)


_HISTOGRAMS: list[_Histogram] = []


@cache
def _get_counter(metric: Metric) -> _Counter:
    return _Counter(metric)


@cache
def _get_histogram(metric: Metric) -> _Histogram:
    return _Histogram(metric)


@cache
def _get_gauge(metric: Metric) -> _Gauge:
    return _Gauge(metric)
