"""Parity: a live projection and a replay agree, or the difference is named."""

from tests.support.builders import History, a_cursor_loop, a_lost_worker, nested
from tests.support.surface_comparison import compare_surfaces

from noetl_contracts import codec
from noetl_contracts.events.loop_events import StageClosed, StageOpened
from noetl_replay import comparison, fold, history_replay, rows, snapshot, state
from noetl_replay.comparison import Surfaces
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.state import ExecutionState


def replayed(history: History) -> tuple[ExecutionState, Surfaces]:
    first = history.envelopes[0]
    begun = state.build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    return comparison.replay_surfaces(begun, history.envelopes)


def stored(surfaces: Surfaces) -> dict[str, list[dict[str, object]]]:
    return {surface: list(found.values()) for surface, found in surfaces.items()}


def test_equal_rows_have_equal_checksums_in_any_order() -> None:
    _, surfaces = replayed(a_cursor_loop())
    shuffled = {surface: found[::-1] for surface, found in stored(surfaces).items()}
    assert comparison.compute_surface_checksums(
        comparison.index_live_surfaces(shuffled)
    ) == comparison.compute_surface_checksums(surfaces)


def test_parity_names_the_row_that_differs() -> None:
    _, surfaces = replayed(a_cursor_loop())
    live = stored(surfaces)
    live["frame"][0] = {**live["frame"][0], "row_count": 11}
    (difference,) = compare_surfaces(comparison.index_live_surfaces(live), surfaces)
    assert (difference.surface, difference.key) == ("frame", live["frame"][0]["frame_id"])


def test_parity_names_the_row_that_is_missing() -> None:
    _, surfaces = replayed(a_lost_worker())
    live = stored(surfaces)
    gone = live["command"].pop()
    (difference,) = compare_surfaces(comparison.index_live_surfaces(live), surfaces)
    assert (difference.key, difference.live) == (gone["command_id"], None)


def test_every_surface_has_a_key_and_a_checksum() -> None:
    _, surfaces = replayed(a_cursor_loop())
    assert (
        set(comparison.compute_surface_checksums(surfaces))
        == set(rows.SURFACES)
        == set(rows.KEY_BY_SURFACE)
    )


def test_a_stage_names_its_parent_outside_of_every_checksum() -> None:
    history = a_cursor_loop()
    begun = replayed(history)[0]
    plain, child = (
        HistoryReplay(
            state.build_empty_state(begun.execution_id, begun.tenant_id, begun.organization_id)
        )
        for _ in range(2)
    )
    plain.feed_events(history.envelopes)
    child.feed_events(nested(a_cursor_loop()).envelopes)
    assert [row["parent_stage_id"] for row in plain.surfaces["stage"].values()] == [None]
    assert [row["parent_stage_id"] for row in child.surfaces["stage"].values()] == ["77"]
    assert comparison.compute_surface_checksums(
        child.surfaces
    ) == comparison.compute_surface_checksums(plain.surfaces)
    assert compare_surfaces(child.surfaces, plain.surfaces) == []
    assert history_replay.build_replay_report(child) == history_replay.build_replay_report(plain)
    report = codec.encode_text(history_replay.build_replay_report(child))
    assert "frame_policy" in report
    assert "parent_stage_id" not in report


def test_an_open_stage_keeps_its_parent_over_a_snapshot_and_until_it_closes() -> None:
    history = nested(a_cursor_loop()).envelopes
    closes = next(n for n, item in enumerate(history) if isinstance(item.event, StageClosed))
    first = history[0]
    begun = state.build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    restored = snapshot.restore_state(
        snapshot.build_snapshot(fold.fold_history(begun, history[:closes]))
    )
    assert restored is not None
    assert "parent_stage_id" not in codec.encode_text(history_replay.show_state(restored))
    _, surfaces = comparison.replay_surfaces(restored, history[closes:])
    (stage,) = surfaces["stage"].values()
    assert (stage["status"], stage["parent_stage_id"]) == ("COMPLETED", "77")


def test_a_snapshot_of_stages_without_parents_has_the_bytes_that_it_had() -> None:
    history = a_cursor_loop()
    begun = replayed(history)[0]
    opened = next(n for n, e in enumerate(history.envelopes) if isinstance(e.event, StageOpened))
    empty = state.build_empty_state(begun.execution_id, begun.tenant_id, begun.organization_id)
    held = fold.fold_history(empty, history.envelopes[: opened + 1])
    assert held.stages
    assert b"parent_stage_id" not in snapshot.build_snapshot(held).state
