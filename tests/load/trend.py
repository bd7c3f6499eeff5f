"""Is a figure flat over time: the slope of its last half, against its own middle."""

import statistics
from collections.abc import Sequence

from msgspec import Struct

# The first half fills caches, pools and arenas: at two executions a second that takes 25 minutes.
WARM_SHARE = 0.5
# Growth in an hour, as a share of the median, below which a figure counts as flat.
GROWTH_SHARE_MAX = 0.05
HOUR_S = 3600.0


class Trend(Struct, frozen=True, kw_only=True):
    """How a figure moved: its median, and what it gains in an hour, also as a share of that."""

    median: float
    least: float
    most: float
    slope_h: float
    share_h: float
    is_flat: bool


def is_service(name: str) -> bool:
    """Tell a service's process, such as `worker-1`, from a server's."""
    return "-" in name


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Fit a line by least squares; return what it gains in a second. Needs two points in time."""
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    assert spread > 0, "a slope needs points at two times"
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def settled(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leave out the first half of the time."""
    first, last = points[0][0], points[-1][0]
    return [(x, y) for x, y in points if x >= first + (last - first) * WARM_SHARE]


def trend(points: Sequence[tuple[float, float]]) -> Trend:
    """Judge the last half of a series of (seconds, figure)."""
    kept = settled(points)
    figures = [y for _, y in kept]
    median = statistics.median(figures)
    gained = slope(kept) * HOUR_S
    share = gained / median if median else 0.0
    return Trend(
        median=round(median, 2),
        least=round(min(figures), 2),
        most=round(max(figures), 2),
        slope_h=round(gained, 2),
        share_h=round(share, 4),
        is_flat=share < GROWTH_SHARE_MAX,
    )
