"""What was done to a history is found, and named by event."""

from collections.abc import Callable

import pytest
from msgspec import structs
from tests.support.builders import History, Slots, a_cursor_loop

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.records import HistoryHead
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_replay.audit import chain
from noetl_replay.audit.chain import ChainDamage

Events = list[StoredEvent]
Damaging = Callable[[Events], Events]
PLACE = 7


def a_history() -> Events:
    return [stored_event.to_stored_event(envelope) for envelope in a_cursor_loop().envelopes]


def a_long_history() -> Events:
    history = History()
    history.start(entry="drain")
    slots = Slots(history, "drain", slots=3)
    for index in range(60):
        slots.take(index % 3, index // 3, rows=5)
    slots.close()
    history.finish(last="drain")
    return [stored_event.to_stored_event(envelope) for envelope in history.envelopes]


def head_of(events: Events) -> HistoryHead:
    last = events[-1]
    return HistoryHead(
        execution_id=ExecutionId(last.execution_id),
        version=last.stream_version,
        checksum=last.envelope_checksum,
    )


def renumbered(events: Events) -> Events:
    return [structs.replace(item, stream_version=place) for place, item in enumerate(events, 1)]


def resealed(events: Events) -> Events:
    """What somebody can do who may write everything."""
    done, before = [], codec.CHECKSUM_NONE
    for event in events:
        before = codec.chain_checksum(before, stored_event.encode_covered_fields(event))
        done.append(structs.replace(event, envelope_checksum=before))
    return done


def changed(events: Events) -> Events:
    event = events[PLACE]
    return [
        *events[:PLACE],
        structs.replace(event, event={**event.event, "step": "other"}),
        *events[PLACE + 1 :],
    ]


def removed(events: Events) -> Events:
    return events[:PLACE] + events[PLACE + 1 :]


def removed_and_renumbered(events: Events) -> Events:
    return renumbered(removed(events))


def inserted(events: Events) -> Events:
    extra = structs.replace(events[PLACE], event_id="77", producer="somebody")
    return renumbered([*events[:PLACE], extra, *events[PLACE:]])


def swapped(events: Events) -> Events:
    item, two = events[PLACE : PLACE + 2]
    return renumbered([*events[:PLACE], two, item, *events[PLACE + 2 :]])


def moved(events: Events) -> Events:
    rest = events[:PLACE] + events[PLACE + 1 :]
    return renumbered([*rest[: PLACE + 5], events[PLACE], *rest[PLACE + 5 :]])


def changed_and_resealed(events: Events) -> Events:
    wrong = changed(events)
    return [*resealed(wrong[: PLACE + 1]), *events[PLACE + 1 :]]


def columns_changed(events: Events) -> Events:
    done = list(events)
    done[PLACE] = structs.replace(done[PLACE], altered=("status",))
    return done


@pytest.mark.parametrize(
    ("damage", "kind", "version"),
    [
        (changed, ChainDamage.CHANGED, PLACE + 1),
        (removed, ChainDamage.REMOVED, PLACE + 1),
        (removed_and_renumbered, ChainDamage.REMOVED, PLACE + 1),
        (inserted, ChainDamage.INSERTED, PLACE + 1),
        (swapped, ChainDamage.REORDERED, PLACE + 1),
        (moved, ChainDamage.REORDERED, PLACE + 6),
        (changed_and_resealed, ChainDamage.CHANGED, PLACE + 2),
        (columns_changed, ChainDamage.COLUMN, PLACE + 1),
    ],
)
@pytest.mark.parametrize("history", [a_history, a_long_history])
def test_damage_is_named(
    damage: Damaging, kind: ChainDamage, version: int, history: Callable[[], Events]
) -> None:
    events = history()
    wrong = damage(events)
    head = structs.replace(head_of(events), version=wrong[-1].stream_version)
    found = chain.examine_history(wrong, head=head)
    assert [(item.damage, item.version) for item in found] == [(kind, version)], found
    assert found[0].message


@pytest.mark.parametrize("history", [a_history, a_long_history])
def test_an_untouched_history_is_found_whole(history: Callable[[], Events]) -> None:
    events = history()
    assert chain.examine_history(events, head=head_of(events), exported=head_of(events[:5])) == []


def test_an_inserted_event_is_named_by_its_identity() -> None:
    events = a_history()
    wrong = inserted(events)
    (found,) = chain.examine_history(wrong, head=head_of(wrong))
    assert found.event_id == "77"


def test_a_removed_end_shows_in_the_head() -> None:
    events = a_history()
    (found,) = chain.examine_history(events[:-2], head=head_of(events))
    assert (found.damage, found.version) == (ChainDamage.REMOVED, len(events) - 1)
    assert "the ledger's head" in found.message


def test_a_removed_end_and_head_show_in_the_exported_head() -> None:
    events = a_history()
    short = events[:-2]
    assert chain.examine_history(short, head=head_of(short)) == []
    (found,) = chain.examine_history(short, head=head_of(short), exported=head_of(events))
    assert "the exported head" in found.message


def test_a_history_sealed_anew_shows_in_the_exported_head() -> None:
    events = a_history()
    anew = resealed(changed(events))
    assert chain.examine_history(anew, head=head_of(anew)) == []
    (found,) = chain.examine_history(anew, head=head_of(anew), exported=head_of(events))
    assert found.damage is ChainDamage.HEAD
    assert "sealed anew" in found.message


def test_events_behind_the_head_and_a_missing_head_are_found() -> None:
    events = a_history()
    (behind,) = chain.examine_history(events, head=head_of(events[:-1]))
    assert (behind.damage, behind.version) == (ChainDamage.INSERTED, len(events))
    (missing,) = chain.examine_history(events, head=None)
    assert missing.damage is ChainDamage.HEAD
    other = structs.replace(head_of(events), checksum="0" * 64)
    (another,) = chain.examine_history(events, head=other)
    assert "another last event" in another.message


@pytest.mark.parametrize("place", range(1, 20))
def test_every_single_change_is_found_at_its_event(place: int) -> None:
    events = a_history()
    event = events[place]
    events[place] = structs.replace(event, meta={"x": 1})
    history = chain.examine_history(events, head=head_of(events))
    assert [(item.damage, item.version) for item in history] == [(ChainDamage.CHANGED, place + 1)]


def test_several_kinds_of_damage_are_all_named() -> None:
    events = a_long_history()
    wrong = list(events)
    wrong[20] = structs.replace(wrong[20], producer="somebody")
    del wrong[50]
    wrong[90] = structs.replace(wrong[90], meta={"x": 1})
    history = chain.examine_history(wrong, head=head_of(events))
    assert [(item.damage, item.version) for item in history] == [
        (ChainDamage.CHANGED, 21),
        (ChainDamage.REMOVED, 51),
        (ChainDamage.CHANGED, 92),
    ]
