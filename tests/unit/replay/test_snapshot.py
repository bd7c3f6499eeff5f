"""Snapshots are believed only when nothing about them is in doubt."""

import msgspec
from tests.support.builders import a_cursor_loop

from noetl_contracts.ledger.records import Snapshot
from noetl_replay import fold, snapshot, state
from noetl_replay.state import ExecutionState


def half_way() -> ExecutionState:
    history = a_cursor_loop()
    first = history.envelopes[0]
    begun = state.build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    return fold.fold_history(begun, history.envelopes[:12])


def altered(**fields: object) -> Snapshot:
    return msgspec.structs.replace(snapshot.build_snapshot(half_way()), **fields)


def test_a_snapshot_gives_back_the_state() -> None:
    before = half_way()
    state.take_changes(before)
    assert snapshot.restore_state(snapshot.build_snapshot(before)) == before


def test_what_was_touched_is_not_part_of_a_snapshot() -> None:
    restored = snapshot.restore_state(snapshot.build_snapshot(half_way()))
    assert restored is not None
    assert restored.changes == state.Changes()


def test_taking_a_snapshot_leaves_the_changes_where_they_were() -> None:
    before = half_way()
    snapshot.build_snapshot(before)
    assert before.changes.frames


def test_a_snapshot_of_another_fold_is_ignored() -> None:
    assert snapshot.restore_state(altered(fold_version=fold.FOLD_VERSION + 1)) is None


def test_a_snapshot_of_other_upcasters_is_ignored() -> None:
    assert snapshot.restore_state(altered(upcaster_digest="0" * 64)) is None


def test_a_damaged_snapshot_is_ignored() -> None:
    taken = snapshot.build_snapshot(half_way())
    damaged = taken.state.replace(b"RUNNING", b"PENDING")
    assert damaged != taken.state
    assert snapshot.restore_state(altered(state=damaged)) is None


def test_no_snapshot_restores_nothing() -> None:
    assert snapshot.restore_state(None) is None
