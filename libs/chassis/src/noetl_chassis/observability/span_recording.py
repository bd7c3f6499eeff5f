"""Whether spans are exported; without an exporter no span is measured."""

from collections.abc import Iterator
from contextlib import contextmanager

_is_there = True


def are_spans_recorded() -> bool:
    """Return whether spans are exported."""
    return _is_there


@contextmanager
def suspend_span_recording() -> Iterator[None]:
    """Export no spans while the block runs."""
    global _is_there  # noqa: PLW0603 - one process, one telemetry
    _is_there = False
    try:
        yield
    finally:
        _is_there = True
