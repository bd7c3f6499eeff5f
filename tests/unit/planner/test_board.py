"""Followers in the planner's own process get its commits from memory, and never a gap."""

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import structs
from tests.support import storage
from tests.support.api import ApiWorld, SilentHints, beginning, ending
from tests.support.storage import an_execution, sealed

from noetl_chassis.clock import SystemClock
from noetl_contracts import subjects
from noetl_contracts.ids import ExecutionId, TenantId
from noetl_contracts.ledger.envelope import Envelope
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.streams import topology
from noetl_planner.api.watch.event_stream import EventStream, HistoryFollower
from noetl_planner.shards import commit_feed
from noetl_planner.shards.commit_feed import CommitFeed, EndFeed, EventFeed

EXECUTION = an_execution()
TAKEN_AT = datetime(2026, 1, 5, 12, 0, 1, tzinfo=UTC)
HISTORY = sealed(EXECUTION, [*beginning(), *ending()])


def _versions(page: Iterable[Envelope]) -> list[int]:
    return [item.stream_version for item in page]


async def test_what_is_handed_over_says_when_the_ledger_took_it() -> None:
    shown = CommitFeed()
    async with shown.follow_execution(SilentHints(), EXECUTION, feed := EventFeed()):
        shown.put_commits(EXECUTION, HISTORY, TAKEN_AT)
        (first,) = feed.take_events(after=0, events_max=1)
    assert (first.ingest_time, first.event_time) == (TAKEN_AT, HISTORY[0].event_time)


async def test_commits_are_handed_over_in_order_and_once() -> None:
    shown = CommitFeed()
    async with shown.follow_execution(SilentHints(), EXECUTION, feed := EventFeed()):
        shown.put_commits(EXECUTION, HISTORY[:2], TAKEN_AT)
        shown.put_commits(EXECUTION, HISTORY[2:], TAKEN_AT)
        assert feed.commit_signal.is_set()
        assert _versions(feed.take_events(after=1, events_max=1)) == [2]
        assert _versions(feed.take_events(after=2, events_max=9)) == _versions(HISTORY[2:])
        assert feed.take_events(after=len(HISTORY), events_max=9) == []


async def test_what_does_not_follow_is_left_to_the_ledger() -> None:
    shown = CommitFeed()
    async with shown.follow_execution(SilentHints(), EXECUTION, feed := EventFeed()):
        shown.put_commits(EXECUTION, HISTORY[2:], TAKEN_AT)
        assert feed.take_events(after=0, events_max=9) == []
        shown.put_commits(EXECUTION, [HISTORY[0], *HISTORY[2:]], TAKEN_AT)
        assert feed.take_events(after=0, events_max=9) == []
        shown.put_commits(EXECUTION, HISTORY * commit_feed.EVENTS_MAX, TAKEN_AT)
        assert feed.take_events(after=0, events_max=9) == []
        shown.put_commits(EXECUTION, HISTORY[:1], TAKEN_AT)
        assert _versions(feed.take_events(after=0, events_max=9)) == [1]


async def test_nothing_is_kept_for_nobody() -> None:
    shown = CommitFeed()
    shown.put_commits(EXECUTION, HISTORY, TAKEN_AT)
    async with (
        shown.follow_execution(SilentHints(), EXECUTION, event_feed := EventFeed()),
        shown.follow_execution(SilentHints(), EXECUTION, other := EventFeed()),
        shown.follow_execution(SilentHints(), ExecutionId("5"), stranger := EventFeed()),
    ):
        assert event_feed.take_events(after=0, events_max=9) == []
        shown.put_commits(EXECUTION, HISTORY, TAKEN_AT)
        assert len(event_feed.take_events(after=0, events_max=9)) == len(HISTORY)
        assert len(other.take_events(after=0, events_max=9)) == len(HISTORY)
        assert stranger.take_events(after=0, events_max=9) == []


async def test_a_follower_shows_what_is_in_the_ledger_and_then_what_is_committed_here() -> None:
    world, shown = ApiWorld(), CommitFeed()
    await world.append(EXECUTION, beginning())
    follower = EventStream(HistoryFollower(world.services(commit_feed=shown), EXECUTION))
    pages = follower.iterate_messages()
    first = await anext(pages)
    assert [message.id for message in first] == [1, 2, 3][: len(beginning())]
    # The ledger stays behind: only the board tells of the end.
    shown.put_commits(EXECUTION, HISTORY[len(beginning()) :], TAKEN_AT)
    rest = [message async for page in pages for message in page]
    ids = [message.id for message in rest if message.event not in {None, "end"}]
    assert ids == list(range(len(beginning()) + 1, len(HISTORY) + 1))
    assert rest[-1].event == "end"


def test_what_was_accepted_is_its_owners_alone_and_forgotten_in_time() -> None:
    shown, owner = CommitFeed(), (storage.TENANT, storage.ORGANIZATION)
    shown.accept_execution(EXECUTION, owner)
    assert shown.is_accepted(EXECUTION, owner)
    assert not shown.is_accepted(EXECUTION, (TenantId("other"), storage.ORGANIZATION))
    for number in range(commit_feed.ACCEPTED_MAX):
        shown.accept_execution(ExecutionId(str(number)), owner)
    assert not shown.is_accepted(EXECUTION, owner)


async def test_the_first_commit_of_what_was_accepted_waits_for_the_first_who_follows() -> None:
    shown = CommitFeed()
    shown.accept_execution(EXECUTION, (storage.TENANT, storage.ORGANIZATION))
    shown.put_commits(EXECUTION, HISTORY[:2], TAKEN_AT)
    async with shown.follow_execution(SilentHints(), EXECUTION, feed := EventFeed()):
        assert feed.commit_signal.is_set()
        shown.put_commits(EXECUTION, HISTORY[2:], TAKEN_AT)
        assert len(feed.take_events(after=0, events_max=9)) == len(HISTORY)
    # It is handed over once, and what comes later is not kept for anybody.
    shown.put_commits(EXECUTION, HISTORY[2:], TAKEN_AT)
    async with shown.follow_execution(SilentHints(), EXECUTION, feed := EventFeed()):
        assert not feed.commit_signal.is_set()
        assert feed.take_events(after=0, events_max=9) == []


async def test_others_are_listened_to_once_nothing_comes_of_what_has_begun_here() -> None:
    shown, hints = CommitFeed(), SilentHints()
    shown.accept_execution(EXECUTION, (storage.TENANT, storage.ORGANIZATION))
    shown.put_commits(EXECUTION, HISTORY[:2], TAKEN_AT)
    async with shown.follow_execution(hints, EXECUTION, feed := EventFeed()) as listener:
        await listener.wait_for_commit(within_s=60)
        assert hints.watched == []
        feed.commit_signal.clear()
        await listener.wait_for_commit(within_s=0.001)
        await listener.wait_for_commit(within_s=0.001)
        assert hints.watched == [subjects.build_growth_hint(EXECUTION)]


async def test_others_are_listened_to_at_once_where_anybody_may_decide() -> None:
    shown, broker = (
        CommitFeed(),
        MemoryBroker(topology.declare_topology(shard_count=1), SystemClock()),
    )
    async with shown.follow_execution(broker, EXECUTION, feed := EventFeed()):
        await broker.notify(subjects.build_growth_hint(EXECUTION))
        assert feed.commit_signal.is_set()
    await broker.notify(subjects.build_growth_hint(EXECUTION))
    assert broker.watched_subjects == frozenset()


async def test_who_waits_for_the_end_alone_is_not_woken_before_it() -> None:
    shown, awaited = CommitFeed(), EndFeed()
    async with shown.follow_execution(SilentHints(), EXECUTION, awaited):
        shown.put_commits(EXECUTION, HISTORY[:2], TAKEN_AT)
        assert not awaited.commit_signal.is_set()
        shown.put_commits(EXECUTION, HISTORY[2:], TAKEN_AT)
        assert awaited.commit_signal.is_set()
        assert awaited.end == structs.replace(HISTORY[-1], ingest_time=TAKEN_AT)


async def test_a_process_that_ends_wakes_whoever_follows_for_whatever() -> None:
    shown = CommitFeed()
    async with (
        shown.follow_execution(SilentHints(), EXECUTION, feed := EventFeed()),
        shown.follow_execution(SilentHints(), ExecutionId("5"), awaited := EndFeed()),
    ):
        assert not feed.commit_signal.is_set()
        shown.wake_followers()
        assert feed.commit_signal.is_set()
        assert awaited.commit_signal.is_set()


async def test_what_is_committed_after_the_end_hides_it_from_nobody() -> None:
    shown, awaited = CommitFeed(), EndFeed()
    async with shown.follow_execution(SilentHints(), EXECUTION, awaited):
        shown.put_commits(EXECUTION, [*HISTORY, HISTORY[1]], TAKEN_AT)
        shown.put_commits(EXECUTION, HISTORY[1:2], TAKEN_AT)
    assert awaited.end == structs.replace(HISTORY[-1], ingest_time=TAKEN_AT)


async def test_an_end_that_came_before_anybody_followed_wakes_whoever_does() -> None:
    shown, awaited = CommitFeed(), EndFeed()
    shown.accept_execution(EXECUTION, (storage.TENANT, storage.ORGANIZATION))
    shown.put_commits(EXECUTION, HISTORY, TAKEN_AT)
    async with shown.follow_execution(SilentHints(), EXECUTION, awaited):
        assert awaited.commit_signal.is_set()
    assert awaited.end == structs.replace(HISTORY[-1], ingest_time=TAKEN_AT)


def test_what_was_not_promised_after_all_is_forgotten() -> None:
    shown, owner = CommitFeed(), (storage.TENANT, storage.ORGANIZATION)
    shown.accept_execution(EXECUTION, owner)
    shown.forget_execution(EXECUTION)
    assert not shown.is_accepted(EXECUTION, owner)
