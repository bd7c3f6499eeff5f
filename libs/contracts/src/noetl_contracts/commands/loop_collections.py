"""How the collection of a loop is kept and cut, so that any part of it is cheap to read."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId, RunId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope

PART_BYTES_MAX = 512 * 1024


class CollectionForm(StrEnum):
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


class CollectionLayout(Struct, frozen=True, kw_only=True):
    """Items grouped by a hash: `order` are their places in the source, unit after unit.

    Unit u has the items from `offsets[u]` up to `offsets[u + 1]`.
    """

    offsets: list[int]
    order: list[int]


class CollectionCut(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How `items` items make `units` units: by `size`, by a layout, else evenly.

    With `inside` the ledger knows one unit, all items, and one worker cuts it into so many.
    """

    items: int
    units: int
    size: int | None = None
    layout_ref: PayloadRef | None = None
    inside: int | None = None

    @property
    def total_units(self) -> int:
        """How many units there are, those inside one worker's frame included."""
        return self.units if self.inside is None else self.inside

    def get_unit_bounds(self, unit: int, offsets: list[int] | None = None) -> tuple[int, int]:
        """Return the index of a unit's first item, and that after its last.

        Where a layout cuts, `offsets` are those that it lists.
        """
        if self.inside is not None:
            return 0, self.items
        if offsets is not None:
            return offsets[unit], offsets[unit + 1]
        if self.size is not None:
            return unit * self.size, min(self.items, (unit + 1) * self.size)
        return unit * self.items // self.units, (unit + 1) * self.items // self.units


class InnerCut(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one worker cuts a frame into units of its own: by `size`, else into `units` even ones.

    `in_flight` of them run at once; a shard that fails is tried `attempts_max` times in all.
    """

    in_flight: int
    size: int | None = None
    units: int | None = None
    attempts_max: int = 1
    is_shard: bool = False

    def cut_items(self, items: int) -> CollectionCut:
        """Cut so many items."""
        if self.units is not None:
            return CollectionCut(items=items, units=self.units, size=self.size)
        size = self.size or 1
        return CollectionCut(items=items, units=-(-items // size), size=size)


class UnitsEnd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the units inside one frame; `parts_ref` lists them when they are collected."""

    ok: int = 0
    failed: int = 0
    retried: int = 0
    parts_ref: PayloadRef | None = None


def encode_list_parts(items: Sequence[Any]) -> Iterator[tuple[int, int, bytes]]:
    """Yield start, end and JSON of consecutive parts of a list; an empty list has one part."""
    part: list[bytes] = []
    start, size = 0, 2
    for index, item in enumerate(items):
        data = codec.encode_json(item)
        if part and size + len(data) > PART_BYTES_MAX:
            yield start, index, b"[" + b",".join(part) + b"]"
            part, start, size = [], index, 2
        part.append(data)
        size += len(data) + 1
    yield start, len(items), b"[" + b",".join(part) + b"]"


class TakenFrames(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a loop whose units are frames takes over.

    `cut` cuts the whole collection into `units_ok` units that are taken over and others; `whole`
    counts the frames of those that are taken over. The rows that run are a list of their
    own in `rows_ref`, and the layout of `TakenItems.todo_ref` says which of them each unit has.
    """

    cut: CollectionCut
    rows_ref: PayloadRef
    rows_form: CollectionForm = CollectionForm.LIST
    units_ok: int = 0
    whole: int = 0
    counts_frames: bool = False


class TakenItems(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a loop takes over from run `run_id` of an earlier execution, and what it runs.

    `total` counts the units of the whole collection as the loop counts them, `completed` those that
    are taken over, `todo` the items that run. `results_ref` is a `PartList` of `TakenItem` or
    `TakenFrame`; `start` and `end` of its parts are item indexes, or units. `todo_ref` is the list
    of indexes that run, in order, or the `Layout` of a loop with `frames`.
    """

    execution_id: ExecutionId
    run_id: RunId
    mode: str
    total: int
    completed: int
    todo: int
    results_ref: PayloadRef
    todo_ref: PayloadRef
    collection_ref: PayloadRef | None = None
    collection_form: CollectionForm = CollectionForm.LIST
    frames: TakenFrames | None = None


class TakenItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An item that completed, and what it gave."""

    index: int
    result: ResultEnvelope


class TakenFrame(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame of unit `unit` whose rows completed, or some of them.

    Its rows are the items from `start` on, `row_count` of them, or those of `indexes`; an index
    below zero is a row that is not taken over.
    """

    unit: int
    row_count: int
    start: int = 0
    indexes: list[int] | None = None
    key: str | None = None
    result: ResultEnvelope | None = None

    @property
    def is_complete(self) -> bool:
        """Tell whether all of its rows are taken over."""
        return self.indexes is None or all(index >= 0 for index in self.indexes)

    def list_item_indexes(self) -> list[int]:
        """Return the item index of each row; below zero for one that is not taken over."""
        if self.indexes is not None:
            return self.indexes
        return list(range(self.start, self.start + self.row_count))
