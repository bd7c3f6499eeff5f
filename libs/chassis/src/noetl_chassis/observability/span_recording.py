"""Whether anybody is told of spans; else they are names, and no measurement keeps one."""

from collections.abc import Iterator
from contextlib import contextmanager

_is_there = True


def are_spans_recorded() -> bool:
    """Tell whether spans go to somebody."""
    return _is_there


@contextmanager
def suspend_span_recording() -> Iterator[None]:
    """Have nobody told of spans while the block runs."""
    global _is_there  # noqa: PLW0603 - one process, one telemetry
    _is_there = False
    try:
        yield
    finally:
        _is_there = True
