"""What a planner remembers of workers: what they said lately, less what they were offered since."""

from datetime import UTC, datetime

from msgspec import structs

from noetl_contracts.ids import WorkerId
from noetl_contracts.workers import SILENT_S, WorkerBeat
from noetl_planner.shell.crowd import Crowd

ONE = WorkerId("one")


class Clock:
    """Time as a test wants it."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at_s, UTC)

    def monotonic(self) -> float:
        return self.at_s


def beat(*, running: int = 0, capacity: int = 2) -> WorkerBeat:
    return WorkerBeat(
        worker_id=ONE, pool="default", lanes=("io",), running=running, capacity=capacity
    )


def test_what_was_offered_counts_until_the_worker_speaks_again() -> None:
    crowd = Crowd(Clock())
    crowd.note(beat())
    crowd.offered(ONE, "io")
    assert [one.free for one in crowd.seen()] == [1]
    crowd.note(beat(running=0))
    assert [one.free for one in crowd.seen()] == [2]


def test_each_lane_of_a_worker_has_its_own_room() -> None:
    crowd = Crowd(Clock())
    crowd.note(beat())
    crowd.note(structs.replace(beat(capacity=64), lanes=("spark",)))
    crowd.offered(ONE, "spark")
    assert {one.lanes: one.free for one in crowd.seen()} == {("io",): 2, ("spark",): 63}
    crowd.forget(ONE)
    assert crowd.seen() == ()


def test_who_is_silent_leaves_or_takes_nothing_is_not_there() -> None:
    clock = Clock()
    crowd = Crowd(clock)
    crowd.note(beat())
    clock.at_s += SILENT_S + 1
    assert crowd.seen() == ()
    crowd.note(beat())
    crowd.note(beat(capacity=0))
    assert crowd.seen() == ()
    crowd.note(beat())
    crowd.forget(ONE)
    crowd.offered(ONE, "io")
    assert crowd.seen() == ()
