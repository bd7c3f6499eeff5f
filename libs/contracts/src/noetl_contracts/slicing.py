"""How the collection of a loop is kept and cut, so that any part of it is cheap to read."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.payloads import PayloadRef

PART_BYTES_MAX = 512 * 1024


class Form(StrEnum):
    """What a collection's payload holds; `pipeline` and `loop` are results kept by a step."""

    LIST = "list"
    PARTS = "parts"
    RANGE = "range"
    PIPELINE = "pipeline"
    LOOP = "loop"


class ListPart(Struct, frozen=True, kw_only=True):
    """The items from `start` up to `end`, as a payload of their own."""

    start: int
    end: int
    ref: PayloadRef


class PartList(Struct, frozen=True, kw_only=True):
    """A long list, kept in parts that follow each other without a gap."""

    total: int
    parts: list[ListPart]


class Layout(Struct, frozen=True, kw_only=True):
    """Items grouped by a hash: `order` are their places in the source, unit after unit.

    Unit u has the items from `offsets[u]` up to `offsets[u + 1]`.
    """

    offsets: list[int]
    order: list[int]


class Cut(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How `items` items make `units` units: by `size`, by a layout, else evenly.

    With `inside` the ledger knows one unit, all items, and one worker cuts it into so many.
    """

    items: int
    units: int
    size: int | None = None
    layout_ref: PayloadRef | None = None
    inside: int | None = None

    @property
    def units_all(self) -> int:
        """How many units there are, those inside one worker's frame included."""
        return self.units if self.inside is None else self.inside

    def bounds(self, unit: int, offsets: list[int] | None = None) -> tuple[int, int]:
        """Return where a unit's items begin and end; a layout's cut needs its offsets."""
        if self.inside is not None:
            return 0, self.items
        if offsets is not None:
            return offsets[unit], offsets[unit + 1]
        if self.size is not None:
            return unit * self.size, min(self.items, (unit + 1) * self.size)
        return unit * self.items // self.units, (unit + 1) * self.items // self.units


class Inside(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one worker cuts a frame into units of its own: by `size`, else into `units` even ones.

    `in_flight` of them run at once; a shard that fails is tried `attempts_max` times in all.
    """

    in_flight: int
    size: int | None = None
    units: int | None = None
    attempts_max: int = 1
    is_shard: bool = False

    def cut(self, items: int) -> Cut:
        """Cut so many items."""
        if self.units is not None:
            return Cut(items=items, units=self.units, size=self.size)
        size = self.size or 1
        return Cut(items=items, units=-(-items // size), size=size)


class UnitsEnd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the units inside one frame; `parts_ref` lists them when they are collected."""

    ok: int = 0
    failed: int = 0
    retried: int = 0
    parts_ref: PayloadRef | None = None


def encoded_parts(items: Sequence[Any]) -> Iterator[tuple[int, int, bytes]]:
    """Yield start, end and JSON of consecutive parts of a list; an empty list has one part."""
    part: list[bytes] = []
    start, size = 0, 2
    for index, item in enumerate(items):
        data = codec.encode(item)
        if part and size + len(data) > PART_BYTES_MAX:
            yield start, index, b"[" + b",".join(part) + b"]"
            part, start, size = [], index, 2
        part.append(data)
        size += len(data) + 1
    yield start, len(items), b"[" + b",".join(part) + b"]"
