"""How fast calls may go: the generic cell rate algorithm, over a value that all workers share.

`tat`, the theoretical arrival time, is when the allowance would be full again. A call may go when
`tat` is at most `(burst - 1) * interval` ahead, and moves it on by one interval: in any window of
w seconds at most `w * rate + burst` calls go. Times are seconds since 1970.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct


class CallRate(Struct, frozen=True, kw_only=True):
    """Seconds between calls, and how many may go at once after a rest."""

    interval_s: float
    burst: int = 1


class CallGrant(Struct, frozen=True, kw_only=True):
    """When each call may go, and how long to rest before asking again.

    `tat` is the time of the next call in theory (the generic cell rate algorithm): the caller
    shares it with other workers, and where no call may go there is nothing to share.
    """

    times: list[float]
    tat: float
    rest_s: float


def grant_calls(
    pace: CallRate, *, tat: float, now: float, calls: int, horizon_s: float
) -> CallGrant:
    """Give calls their times, in order, none later than the horizon.

    A worker that dies with a reserved time wastes no more than the horizon.
    """
    tolerance_s = (pace.burst - 1) * pace.interval_s
    times: list[float] = []
    for _ in range(calls):
        time = max(now, tat - tolerance_s)
        if time > now + horizon_s:
            break
        times.append(time)
        tat = max(time, tat) + pace.interval_s
    rest_s = 0.0 if times else tat - tolerance_s - now - horizon_s
    return CallGrant(times=times, tat=tat, rest_s=rest_s)


def allot_places(
    room: int,
    *,
    waiting: Iterable[str],
    running: Mapping[str, int],
    weights: Mapping[str, int],
    first: int = 0,
) -> dict[str, int]:
    """Give each of `room` places to the share with least for its weight, of equals in turn.

    `running` is what each has already; `first` is whose turn it is. What everybody has in the end
    is as even as what they have already lets it be, so nobody who waits gets less than its share
    of the places that become free.
    """
    names = sorted(waiting)
    turn = first % len(names) if names else 0
    names = names[turn:] + names[:turn]
    places = dict.fromkeys(names, 0)
    for _ in range(room if names else 0):
        neediest = min(
            names, key=lambda name: (running.get(name, 0) + places[name] + 1) / weights[name]
        )
        places[neediest] += 1
    return places
