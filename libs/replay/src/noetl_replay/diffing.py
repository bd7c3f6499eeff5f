"""What differs between two plain values, as a list of changes and as a tree for people."""

from collections.abc import Iterator
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from msgspec import Struct

from noetl_contracts import codec

# A value is shown up to here in the tree; the list of changes has all of it.
SHOWN_CHARACTERS = 100
DEPTH_MAX = 64

_ABSENT = object()


class Kind(StrEnum):
    """What became of a value."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class Change(Struct, frozen=True, kw_only=True):
    """A value that is only on one side, or not the same on both; `path` leads to it."""

    path: tuple[str, ...]
    kind: Kind
    before: Any = None
    after: Any = None


def compare(before: Any, after: Any) -> list[Change]:
    """List the innermost values in which two plain values differ; empty means that they are one."""
    return list(_compare((), before, after))


def _compare(path: tuple[str, ...], before: Any, after: Any) -> Iterator[Change]:
    if before is _ABSENT:
        yield Change(path=path, kind=Kind.ADDED, after=after)
    elif after is _ABSENT:
        yield Change(path=path, kind=Kind.REMOVED, before=before)
    elif len(path) < DEPTH_MAX and isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            one, other = before.get(name, _ABSENT), after.get(name, _ABSENT)
            yield from _compare((*path, name), one, other)
    elif len(path) < DEPTH_MAX and isinstance(before, list) and isinstance(after, list):
        pairs = zip_longest(before, after, fillvalue=_ABSENT)
        for place, (one, other) in enumerate(pairs):
            yield from _compare((*path, f"[{place}]"), one, other)
    elif codec.canonical(before) != codec.canonical(after):
        yield Change(path=path, kind=Kind.CHANGED, before=before, after=after)


def tree(changes: list[Change]) -> list[str]:
    """Draw changes as an indented tree: `+` added, `-` removed, `~` from what to what."""
    lines: list[str] = []
    above: tuple[str, ...] = ()
    for change in changes:
        *parents, name = change.path or ("",)
        common = next(
            (
                depth
                for depth, (one, other) in enumerate(zip(parents, above, strict=False))
                if one != other
            ),
            min(len(parents), len(above)),
        )
        lines += [f"{'  ' * depth}{parents[depth]}" for depth in range(common, len(parents))]
        lines.append(f"{'  ' * len(parents)}{_line(name, change)}")
        above = tuple(parents)
    return lines


def _line(name: str, change: Change) -> str:
    match change.kind:
        case Kind.ADDED:
            return f"+ {name}: {_text(change.after)}"
        case Kind.REMOVED:
            return f"- {name}: {_text(change.before)}"
        case Kind.CHANGED:
            return f"~ {name}: {_text(change.before)} -> {_text(change.after)}"


def _text(value: Any) -> str:
    text = codec.text(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
