"""How fast calls may go: the generic cell rate algorithm, over a value that all workers share.

`tat`, the theoretical arrival time, is when the allowance would be full again. A call may go when
`tat` is at most `(burst - 1) * interval` ahead, and moves it on by one interval: in any window of
w seconds at most `w * rate + burst` calls go. Times are seconds since 1970.
"""

from msgspec import Struct


class Pace(Struct, frozen=True, kw_only=True):
    """Seconds between calls, and how many may go at once after a rest."""

    interval_s: float
    burst: int = 1


class Grant(Struct, frozen=True, kw_only=True):
    """When each call may go, what is to be shared then, and how long to rest before asking again.

    Without any time nothing is to be shared.
    """

    times: list[float]
    tat: float
    rest_s: float


def grant(pace: Pace, *, tat: float, now: float, wanted: int, horizon_s: float) -> Grant:
    """Give calls their times, in order, none later than the horizon.

    Whoever dies with a time in hand wastes no more than the horizon holds.
    """
    tolerance_s = (pace.burst - 1) * pace.interval_s
    times: list[float] = []
    for _ in range(wanted):
        time = max(now, tat - tolerance_s)
        if time > now + horizon_s:
            break
        times.append(time)
        tat = max(time, tat) + pace.interval_s
    rest_s = 0.0 if times else tat - tolerance_s - now - horizon_s
    return Grant(times=times, tat=tat, rest_s=rest_s)
