"""How much memory a decoded value takes, about: long lists are judged by some of their items."""

import sys
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

SAMPLED = 16
DEPTH_MAX = 32


def estimate_memory(value: Any, depth: int = DEPTH_MAX) -> int:
    """Return about how many bytes a value takes in this process, with all that it holds.

    What is no plain value tells its own size, or counts as what it is by itself.
    """
    own_bytes = int(getattr(value, "nbytes", 0)) or sys.getsizeof(value)
    if depth == 0:
        return own_bytes
    match value:
        case dict():
            return (
                own_bytes
                + _estimate_all(value.keys(), depth)
                + _estimate_all(value.values(), depth)
            )
        case list() | tuple():
            return own_bytes + _estimate_all(value, depth)
        case _:
            return own_bytes


def _estimate_all(values: Collection[Any], depth: int) -> int:
    """Weigh some that lie evenly among all of them, and conclude."""
    count = len(values)
    if count <= SAMPLED:
        return sum(estimate_memory(value, depth - 1) for value in values)
    step = count // SAMPLED
    sampled_values: Iterable[Any] = islice(values, 0, step * SAMPLED, step)
    return sum(estimate_memory(item, depth - 1) for item in sampled_values) * count // SAMPLED
