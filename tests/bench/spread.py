"""How figures of several rounds are told: the middle one, and how far they lay apart."""

import statistics
from collections.abc import Sequence


def spread(found: Sequence[float], *, digits: int = 1) -> dict[str, float]:
    """Return the median with the least and the most."""
    return {
        "median": round(statistics.median(found), digits),
        "least": round(min(found), digits),
        "most": round(max(found), digits),
    }


def share(found: Sequence[float], part: float) -> float:
    """Return the value below which a part of them lies."""
    ordered = sorted(found)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]
