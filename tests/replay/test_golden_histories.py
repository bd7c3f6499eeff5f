"""Every recorded history folds to its recorded checksums, from zero and from every snapshot."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec import structs
from tests.replay import record

from noetl_contracts import codec
from noetl_contracts.events import CLASS_BY_TYPE, EVENT_CLASSES
from noetl_contracts.ledger import stored_event, upcasters
from noetl_contracts.ledger.envelope import Envelope
from noetl_replay import comparison, fold, snapshot, state
from noetl_replay.history_replay import HistoryReplay

NAMES = record.names()


def test_there_are_golden_histories() -> None:
    assert len(NAMES) >= 6


def test_golden_histories_cover_the_event_types() -> None:
    events = (item.event for name in NAMES for item in record.load(name))
    seen = {str(event.__struct_config__.tag) for event in events}
    assert seen == set(CLASS_BY_TYPE)


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_history_folds_to_its_recorded_checksums(name: str) -> None:
    expected = codec.decode_json(record.paths(name)[1].read_bytes())
    assert record.fingerprint(record.load(name)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_history_is_a_sealed_chain(name: str) -> None:
    before = codec.CHECKSUM_NONE
    for item in record.load_stored(name):
        assert stored_event.is_stored_event_sealed(item, before), (
            f"version {item.stream_version} was altered"
        )
        before = item.envelope_checksum


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_history_folds_alike_from_every_snapshot(name: str) -> None:
    history = record.load(name)
    first = history[0]
    begun = state.build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    snapshots = []
    for item in history:
        begun = fold.fold_event(begun, item)
        snapshots.append(snapshot.build_snapshot(begun))
    for cut, taken in enumerate(snapshots, start=1):
        restored = snapshot.restore_state(taken)
        assert restored is not None
        resumed = fold.fold_history(restored, history[cut:])
        assert snapshot.build_snapshot(resumed) == snapshots[-1]


def test_a_field_that_a_later_release_adds_changes_no_older_event() -> None:
    writing_defaults = [
        kind.__name__ for kind in EVENT_CLASSES if not kind.__struct_config__.omit_defaults
    ]
    assert writing_defaults == [], "their bytes, hence checksums, would change with a new field"


def test_what_an_envelope_covers_never_grows() -> None:
    """A field that envelopes gain later must be covered only where it says something."""
    covered = set(Envelope.__struct_fields__) - {"envelope_checksum", "ingest_time"}
    assert covered == set(
        codec.decode_json(stored_event.encode_covered_fields(record.load_stored(NAMES[0])[0]))
    ) - {
        "envelope_checksum",
        "ingest_time",
    }
    for item in (item for name in NAMES for item in record.load_stored(name)):
        assert b'"envelope_checksum":""' in stored_event.encode_covered_fields(item)


def test_the_corpus_holds_old_versions_of_events() -> None:
    """Two schemas have moved on since these histories were recorded, and both still fold."""
    old = {
        item.schema_name
        for name in NAMES
        for item in record.load_stored(name)
        if item.schema_version < upcasters.get_current_version(item.schema_name)
    }
    assert old == {"noetl.frame.abandoned", "noetl.frame.commit_rejected"}


@pytest.mark.parametrize("name", NAMES)
def test_what_was_sealed_is_covered_field_by_field(name: str) -> None:
    before = codec.CHECKSUM_NONE
    for item in record.load_stored(name):
        for field in codec.decode_json(stored_event.encode_covered_fields(item)):
            if field in {"envelope_checksum", "ingest_time"}:
                continue
            changed = structs.replace(item, **{field: altered(getattr(item, field))})
            assert not stored_event.is_stored_event_sealed(changed, before), field
        before = item.envelope_checksum


def altered(value: Any) -> Any:
    """Another value of the same kind."""
    match value:
        case None:
            return "something"
        case dict():
            return {**value, "more": 1}
        case int():
            return value + 1
        case datetime():
            return value + timedelta(microseconds=1)
        case _:
            return f"{value}!"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_replay_shows_the_same_rows_whatever_its_pages(name: str, size: int) -> None:
    history = record.load(name)
    first = history[0]
    begun = state.build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    replay = HistoryReplay(begun)
    for start in range(0, len(history), size):
        replay.feed_events(history[start : start + size])
    expected = codec.decode_json(record.paths(name)[1].read_bytes())
    surface_checksums = comparison.compute_surface_checksums(replay.surfaces)
    assert surface_checksums == {surface: expected[surface] for surface in surface_checksums}
