"""Instruments by their declaration; without a started telemetry they cost nothing."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from opentelemetry import metrics

from noetl_chassis.names import Metric

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


def count(metric: Metric, amount: int = 1, *, labels: Mapping[str, str] | None = None) -> None:
    """Add to a counter."""
    _counter(metric).add(amount, labels)


def record(metric: Metric, value: float, *, labels: Mapping[str, str] | None = None) -> None:
    """Record one measurement of a histogram."""
    _histogram(metric).record(value, labels)


def show(metric: Metric, value: float, *, labels: Mapping[str, str] | None = None) -> None:
    """Set a gauge."""
    _gauge(metric).set(value, labels)


@cache
def _counter(metric: Metric) -> Any:
    return metrics.get_meter(SCOPE).create_counter(
        metric.name, unit=metric.unit, description=metric.meaning
    )


@cache
def _histogram(metric: Metric) -> Any:
    return metrics.get_meter(SCOPE).create_histogram(
        metric.name,
        unit=metric.unit,
        description=metric.meaning,
        explicit_bucket_boundaries_advisory=SECONDS_BUCKETS,
    )


@cache
def _gauge(metric: Metric) -> Any:
    return metrics.get_meter(SCOPE).create_gauge(
        metric.name, unit=metric.unit, description=metric.meaning
    )
