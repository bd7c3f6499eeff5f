"""Parity: a live projection and a replay agree, or the difference is named."""

from tests.support.builders import History, a_cursor_loop, a_lost_worker

from noetl_replay import checksum, rows, state
from noetl_replay.checksum import Surfaces
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
