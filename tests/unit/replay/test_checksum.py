"""Parity: a live projection and a replay agree, or the difference is named."""

from tests.support.builders import History, a_cursor_loop, a_lost_worker, nested

from noetl_contracts import codec
from noetl_contracts.events.stage import StageClosed, StageOpened
from noetl_replay import checksum, fold, replaying, rows, snapshot, state
from noetl_replay.checksum import Surfaces
from noetl_replay.replaying import Replay
from noetl_replay.state import ExecutionState


def replayed(history: History) -> tuple[ExecutionState, Surfaces]:
    first = history.envelopes[0]
    begun = state.empty(first.execution_id, first.tenant_id, first.organization_id)
    return checksum.replay_surfaces(begun, history.envelopes)


def stored(surfaces: Surfaces) -> dict[str, list[dict[str, object]]]:
    return {surface: list(found.values()) for surface, found in surfaces.items()}


def test_equal_rows_have_equal_checksums_in_any_order() -> None:
    _, surfaces = replayed(a_cursor_loop())
    shuffled = {surface: found[::-1] for surface, found in stored(surfaces).items()}
    assert checksum.checksums(checksum.live_surfaces(shuffled)) == checksum.checksums(surfaces)


def test_parity_names_the_row_that_differs() -> None:
    _, surfaces = replayed(a_cursor_loop())
    live = stored(surfaces)
    live["frame"][0] = {**live["frame"][0], "row_count": 11}
    (difference,) = checksum.compare(checksum.live_surfaces(live), surfaces)
    assert (difference.surface, difference.key) == ("frame", live["frame"][0]["frame_id"])


def test_parity_names_the_row_that_is_missing() -> None:
    _, surfaces = replayed(a_lost_worker())
    live = stored(surfaces)
    gone = live["command"].pop()
    (difference,) = checksum.compare(checksum.live_surfaces(live), surfaces)
    assert (difference.key, difference.live) == (gone["command_id"], None)


def test_every_surface_has_a_key_and_a_checksum() -> None:
    _, surfaces = replayed(a_cursor_loop())
    assert set(checksum.checksums(surfaces)) == set(rows.SURFACES) == set(rows.KEY_BY_SURFACE)


def test_a_stage_names_its_parent_outside_of_every_checksum() -> None:
    history = a_cursor_loop()
    begun = replayed(history)[0]
    plain, child = (
        Replay(state.empty(begun.execution_id, begun.tenant_id, begun.organization_id))
        for _ in range(2)
    )
    plain.feed(history.envelopes)
    child.feed(nested(a_cursor_loop()).envelopes)
    assert [row["parent_stage_id"] for row in plain.surfaces["stage"].values()] == [None]
    assert [row["parent_stage_id"] for row in child.surfaces["stage"].values()] == ["77"]
    assert checksum.checksums(child.surfaces) == checksum.checksums(plain.surfaces)
    assert checksum.compare(child.surfaces, plain.surfaces) == []
    assert replaying.report(child) == replaying.report(plain)
    report = codec.text(replaying.report(child))
    assert "frame_policy" in report
    assert "parent_stage_id" not in report


def test_an_open_stage_keeps_its_parent_over_a_snapshot_and_until_it_closes() -> None:
    history = nested(a_cursor_loop()).envelopes
    closes = next(n for n, one in enumerate(history) if isinstance(one.event, StageClosed))
    first = history[0]
    begun = state.empty(first.execution_id, first.tenant_id, first.organization_id)
    restored = snapshot.restore(snapshot.take(fold.fold(begun, history[:closes])))
    assert restored is not None
    assert "parent_stage_id" not in codec.text(replaying.shown(restored))
    _, surfaces = checksum.replay_surfaces(restored, history[closes:])
    (stage,) = surfaces["stage"].values()
    assert (stage["status"], stage["parent_stage_id"]) == ("COMPLETED", "77")


def test_a_snapshot_of_stages_without_parents_has_the_bytes_that_it_had() -> None:
    history = a_cursor_loop()
    begun = replayed(history)[0]
    opened = next(n for n, e in enumerate(history.envelopes) if isinstance(e.event, StageOpened))
    empty = state.empty(begun.execution_id, begun.tenant_id, begun.organization_id)
    held = fold.fold(empty, history.envelopes[: opened + 1])
    assert held.stages
    assert b"parent_stage_id" not in snapshot.take(held).state
