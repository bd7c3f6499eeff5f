"""How a worker's room is shared out between tenants that have work waiting."""

from collections.abc import Iterable, Mapping


def allot(
    room: int,
    *,
    hungry: Iterable[str],
    running: Mapping[str, int],
    weights: Mapping[str, int],
    first: int = 0,
) -> dict[str, int]:
    """Give each of `room` places to whoever then has least for its weight, of equals in turn.

    `running` is what each has already; `first` is whose turn it is. What everybody has in the end
    is as even as what they have already lets it be, so nobody who waits gets less than its share
    of the places that become free.
    """
    named = sorted(hungry)
    turn = first % len(named) if named else 0
    named = named[turn:] + named[:turn]
    given = dict.fromkeys(named, 0)
    for _ in range(room if named else 0):
        least = min(
            named, key=lambda name: (running.get(name, 0) + given[name] + 1) / weights[name]
        )
        given[least] += 1
    return given
