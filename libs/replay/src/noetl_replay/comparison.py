"""What differs between two plain values, as a list of changes and as a tree for people."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.ledger.envelope import Envelope
from noetl_replay import fold, rows
from noetl_replay.state import ExecutionState, take_changes

# A value is shown up to here in the tree; the list of changes has all of it.
SHOWN_CHARACTERS = 100
DEPTH_MAX = 64

_ABSENT = object()


class ChangeKind(StrEnum):
    """What became of a value."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class ValueChange(Struct, frozen=True, kw_only=True):
    """A value that is only on one side, or not the same on both; `path` leads to it."""

    path: tuple[str, ...]
    kind: ChangeKind
    before: Any = None
    after: Any = None


def compare_values(before: Any, after: Any) -> list[ValueChange]:
    """List the innermost values in which two plain values differ; empty means that they are one."""
    return list(_iterate_changes((), before, after))


def _iterate_changes(path: tuple[str, ...], before: Any, after: Any) -> Iterator[ValueChange]:
    if before is _ABSENT:
        yield ValueChange(path=path, kind=ChangeKind.ADDED, after=after)
    elif after is _ABSENT:
        yield ValueChange(path=path, kind=ChangeKind.REMOVED, before=before)
    elif len(path) < DEPTH_MAX and isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            item, other = before.get(name, _ABSENT), after.get(name, _ABSENT)
            yield from _iterate_changes((*path, name), item, other)
    elif len(path) < DEPTH_MAX and isinstance(before, list) and isinstance(after, list):
        pairs = zip_longest(before, after, fillvalue=_ABSENT)
        for place, (item, other) in enumerate(pairs):
            yield from _iterate_changes((*path, f"[{place}]"), item, other)
    elif codec.encode_canonical(before) != codec.encode_canonical(after):
        yield ValueChange(path=path, kind=ChangeKind.CHANGED, before=before, after=after)


def render_change_tree(changes: list[ValueChange]) -> list[str]:
    """Draw changes as an indented tree: `+` added, `-` removed, `~` from what to what."""
    lines: list[str] = []
    above: tuple[str, ...] = ()
    for change in changes:
        *parents, name = change.path or ("",)
        common = next(
            (
                depth
                for depth, (item, other) in enumerate(zip(parents, above, strict=False))
                if item != other
            ),
            min(len(parents), len(above)),
        )
        lines += [f"{'  ' * depth}{parents[depth]}" for depth in range(common, len(parents))]
        lines.append(f"{'  ' * len(parents)}{_render_change(name, change)}")
        above = tuple(parents)
    return lines


def _render_change(name: str, change: ValueChange) -> str:
    match change.kind:
        case ChangeKind.ADDED:
            return f"+ {name}: {_shorten_value(change.after)}"
        case ChangeKind.REMOVED:
            return f"- {name}: {_shorten_value(change.before)}"
        case ChangeKind.CHANGED:
            return f"~ {name}: {_shorten_value(change.before)} -> {_shorten_value(change.after)}"


def _shorten_value(value: Any) -> str:
    text = codec.encode_text(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


Surfaces = dict[str, dict[str, dict[str, Any]]]


def replay_surfaces(
    state: ExecutionState, history: Iterable[Envelope]
) -> tuple[ExecutionState, Surfaces]:
    """Fold a history and keep the last row of everything it touched; consumes `state`."""
    surfaces: Surfaces = {surface: {} for surface in rows.SURFACES}
    for envelope in history:
        state = fold.fold_event(state, envelope)
        for surface, changed_rows in rows.build_changed_rows(state, take_changes(state)).items():
            key = rows.KEY_BY_SURFACE[surface]
            surfaces[surface].update({row[key]: row for row in changed_rows})
    return state, surfaces


def index_live_surfaces(rows_by_surface: Mapping[str, Sequence[Mapping[str, Any]]]) -> Surfaces:
    """Index stored rows as `replay_surfaces` does."""
    return {
        surface: {
            str(row[rows.KEY_BY_SURFACE[surface]]): dict(row)
            for row in rows_by_surface.get(surface, ())
        }
        for surface in rows.SURFACES
    }


def compute_surface_checksums(surfaces: Surfaces) -> dict[str, str]:
    """Fingerprint each surface."""
    return {
        surface: codec.compute_checksum(row_by_key)
        for surface, row_by_key in rows.select_checksum_surfaces(surfaces).items()
    }
