"""Fingerprints of states, surface by surface, and their comparison."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.envelope import Envelope
from noetl_replay import fold, rows
from noetl_replay.state import ExecutionState, take_changes

Surfaces = dict[str, dict[str, dict[str, Any]]]


class Difference(Struct, frozen=True, kw_only=True):
    """A row that the two sides do not agree on; a missing side is None."""

    surface: str
    key: str
    live: dict[str, Any] | None
    replayed: dict[str, Any] | None


def replay_surfaces(
    state: ExecutionState, history: Iterable[Envelope]
) -> tuple[ExecutionState, Surfaces]:
    """Fold a history and keep the last row of everything it touched; consumes `state`."""
    surfaces: Surfaces = {surface: {} for surface in rows.SURFACES}
    for envelope in history:
        state = fold.evolve(state, envelope)
        for surface, found in rows.changed_rows(state, take_changes(state)).items():
            key = rows.KEY_BY_SURFACE[surface]
            surfaces[surface].update({row[key]: row for row in found})
    return state, surfaces


def live_surfaces(rows_by_surface: Mapping[str, Sequence[Mapping[str, Any]]]) -> Surfaces:
    """Index stored rows as `replay_surfaces` does."""
    return {
        surface: {
            str(row[rows.KEY_BY_SURFACE[surface]]): dict(row)
            for row in rows_by_surface.get(surface, ())
        }
        for surface in rows.SURFACES
    }


def checksums(surfaces: Surfaces) -> dict[str, str]:
    """Fingerprint each surface."""
    return {
        surface: codec.checksum(found) for surface, found in rows.summed_surfaces(surfaces).items()
    }


def compare(live: Surfaces, replayed: Surfaces) -> list[Difference]:
    """List the rows in which a live projection and a replay differ; empty means parity."""
    live, replayed = rows.summed_surfaces(live), rows.summed_surfaces(replayed)
    return [
        Difference(
            surface=surface,
            key=key,
            live=live[surface].get(key),
            replayed=replayed[surface].get(key),
        )
        for surface in rows.SURFACES
        for key in sorted(live[surface].keys() | replayed[surface].keys())
        if codec.canonical(live[surface].get(key)) != codec.canonical(replayed[surface].get(key))
    ]
