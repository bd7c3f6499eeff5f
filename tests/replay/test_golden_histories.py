"""Every recorded history folds to its recorded checksums, from zero and from every snapshot."""

import pytest
from tests.replay import record

from noetl_contracts import codec, envelope
from noetl_contracts.events import CLASS_BY_TYPE, EVENT_CLASSES
from noetl_replay import fold, snapshot, state

NAMES = record.names()


def test_there_are_golden_histories() -> None:
    assert len(NAMES) >= 6


def test_golden_histories_cover_the_event_types() -> None:
    events = (one.event for name in NAMES for one in record.load(name))
    seen = {str(event.__struct_config__.tag) for event in events}
    assert seen == set(CLASS_BY_TYPE)


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_history_folds_to_its_recorded_checksums(name: str) -> None:
    expected = codec.decode(record.paths(name)[1].read_bytes())
    assert record.fingerprint(record.load(name)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_history_is_a_sealed_chain(name: str) -> None:
    before = codec.CHECKSUM_NONE
    for one in record.load(name):
        assert envelope.is_sealed(one, before), f"version {one.stream_version} was altered"
        before = one.envelope_checksum


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_history_folds_alike_from_every_snapshot(name: str) -> None:
    history = record.load(name)
    first = history[0]
    begun = state.empty(first.execution_id, first.tenant_id, first.organization_id)
    snapshots = []
    for one in history:
        begun = fold.evolve(begun, one)
        snapshots.append(snapshot.take(begun))
    for cut, taken in enumerate(snapshots, start=1):
        restored = snapshot.restore(taken)
        assert restored is not None
        resumed = fold.fold(restored, history[cut:])
        assert snapshot.take(resumed) == snapshots[-1]


def test_a_field_that_a_later_release_adds_changes_no_older_event() -> None:
    writing_defaults = [
        kind.__name__ for kind in EVENT_CLASSES if not kind.__struct_config__.omit_defaults
    ]
    assert writing_defaults == [], "their bytes, hence checksums, would change with a new field"
