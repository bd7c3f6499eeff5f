"""Items of a loop that an earlier execution has completed, and those that are to run again."""

from msgspec import Struct

from noetl_contracts.ids import ExecutionId, RunId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.slicing import Cut, Form


class TakenFrames(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a loop whose units are frames takes over.

    `cut` cuts the whole collection into `units_ok` units that are taken over and others; `whole`
    counts the frames of those that are taken over. The rows that run are a list of their
    own in `rows_ref`, and the layout of `TakenItems.todo_ref` says which of them each unit has.
    """

    cut: Cut
    rows_ref: PayloadRef
    rows_form: Form = Form.LIST
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
    collection_form: Form = Form.LIST
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
    def is_whole(self) -> bool:
        """Tell whether all of its rows are taken over."""
        return self.indexes is None or all(index >= 0 for index in self.indexes)

    def places(self) -> list[int]:
        """Return the item index of each row; below zero for one that is not taken over."""
        if self.indexes is not None:
            return self.indexes
        return list(range(self.start, self.start + self.row_count))
