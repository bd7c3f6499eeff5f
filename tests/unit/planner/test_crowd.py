"""What a planner remembers of workers: what they said lately, less what they were offered since."""

from datetime import UTC, datetime

from msgspec import structs

from noetl_contracts.commands.worker_pools import SILENT_S, WorkerHeartbeat
from noetl_contracts.ids import WorkerId
from noetl_planner.shards.worker_presence import WorkerPresence

ONE = WorkerId("one")


class Clock:
    """Time as a test wants it."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at_s, UTC)

    def monotonic_s(self) -> float:
        return self.at_s


def beat(*, running: int = 0, capacity: int = 2) -> WorkerHeartbeat:
    return WorkerHeartbeat(
        worker_id=ONE, pool="default", lanes=("io",), running=running, capacity=capacity
    )


def test_what_was_offered_counts_until_the_worker_speaks_again() -> None:
    worker_presence = WorkerPresence(Clock())
    worker_presence.note_beat(beat())
    worker_presence.count_offer(ONE, "io")
    assert [item.free_capacity for item in worker_presence.list_beats()] == [1]
    worker_presence.note_beat(beat(running=0))
    assert [item.free_capacity for item in worker_presence.list_beats()] == [2]


def test_each_lane_of_a_worker_has_its_own_room() -> None:
    worker_presence = WorkerPresence(Clock())
    worker_presence.note_beat(beat())
    worker_presence.note_beat(structs.replace(beat(capacity=64), lanes=("spark",)))
    worker_presence.count_offer(ONE, "spark")
    assert {item.lanes: item.free_capacity for item in worker_presence.list_beats()} == {
        ("io",): 2,
        ("spark",): 63,
    }
    worker_presence.forget_worker(ONE)
    assert worker_presence.list_beats() == ()


def test_who_is_silent_leaves_or_takes_nothing_is_not_there() -> None:
    clock = Clock()
    worker_presence = WorkerPresence(clock)
    worker_presence.note_beat(beat())
    clock.at_s += SILENT_S + 1
    assert worker_presence.list_beats() == ()
    worker_presence.note_beat(beat())
    worker_presence.note_beat(beat(capacity=0))
    assert worker_presence.list_beats() == ()
    worker_presence.note_beat(beat())
    worker_presence.forget_worker(ONE)
    worker_presence.count_offer(ONE, "io")
    assert worker_presence.list_beats() == ()


def test_nobody_is_called_silent_before_that_can_be_known() -> None:
    clock = Clock()
    worker_presence = WorkerPresence(clock)
    assert (worker_presence.is_silent(ONE), worker_presence.has_worker("default", "io")) == (
        *(None, None),
    )
    clock.at_s += SILENT_S
    assert (worker_presence.is_silent(ONE), worker_presence.has_worker("default", "io")) == (
        *(True, False),
    )
    worker_presence.note_beat(beat())
    # One that offers do not reach speaks nevertheless.
    worker_presence.forget_worker(ONE)
    assert worker_presence.is_silent(ONE) is False
    assert worker_presence.has_worker("default", "io") is True
    assert worker_presence.has_worker("default", "spark") is False
    assert worker_presence.has_worker("gpu", "io") is False
    worker_presence.note_beat(beat(capacity=0))
    clock.at_s += SILENT_S + 1
    # It has said that it leaves, and may still finish something.
    assert worker_presence.is_silent(ONE) is None
    worker_presence.note_beat(beat())
    clock.at_s += SILENT_S + 1
    assert worker_presence.is_silent(ONE) is True
