"""How items of loops are shown."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

from noetl_chassis import redaction
from noetl_contracts import codec
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.loop_items.loop_record import CollectionReader
from noetl_playbook.templates import output_forms

# A longer input is shown by where it is kept, and by its beginning.
INPUT_BYTES_MAX = 4 * 1024
PREVIEW_CHARACTERS = 200


class ItemState(StrEnum):
    """What became of an item; `cancelled` did not get to its end, or never began."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class FramePlace(Struct, frozen=True, kw_only=True):
    """The frame that an item is a row of; `row` is the row's place in it, if one is meant."""

    frame_id: str
    slot: int
    frame_index: int
    row: int | None = None


class InputReference(Struct, frozen=True, kw_only=True):
    """Where a large input is kept: the payload, and the item's place in its list."""

    ref: str | None
    place: int
    bytes: int
    preview: str


class ItemView(Struct, frozen=True, kw_only=True):
    """An item of a loop, or what is recorded instead of single items.

    `record` says what it is a record of: `item`, `row` (of a frame), `frame` or `unit` (a chunk or
    shard that one worker cut), and `count` how many items that are, from `index` on. `failed` says
    how many of them failed, where single ones are not recorded. `attempts` counts how often a
    worker was given it, `tries` are attempts that failed and were followed by others. `duration` is
    in seconds, from when it was handed out. `taken_from` is the execution that completed it.
    """

    index: int
    state: ItemState
    record: str
    count: int = 1
    failed: int | None = None
    input: Any = None
    input_ref: InputReference | None = None
    input_problem: str | None = None
    error: Any = None
    attempts: int = 0
    tries: list[Any] = []
    issued_at: datetime | None = None
    ended_at: datetime | None = None
    duration: float | None = None
    worker_id: str | None = None
    command_id: str | None = None
    frame: FramePlace | None = None
    taken_from: str | None = None


class ItemPage(Struct, frozen=True, kw_only=True):
    """Items in their order; ask again with `after=next_after` while `has_more`.

    A page may be short, and even empty, while there are more: a search looks at so many items for
    one answer. `notes` say what this kind of loop does not record.
    """

    execution_id: str
    step: str
    run_id: str
    mode: str
    counts: dict[str, int]
    items: list[ItemView]
    next_after: str
    has_more: bool
    notes: list[str] = []


async def view_item_input(collection: CollectionReader, place: int) -> dict[str, Any]:
    """Return the fields of a view that tell an item's input."""
    try:
        value = output_forms.to_plain(await collection.read_item(place))
        reference = await collection.find_reference(place)
    except ApiError as failure:
        return {"input_problem": f"the collection cannot be read here: {failure.detail}"}
    data = codec.encode_json(value)
    if len(data) <= INPUT_BYTES_MAX:
        return {"input": value}
    # Concealed before it is cut: of a sealed value no part is shown either.
    text = redaction.mask_sealed_values(data.decode())
    payload, at = (None, place) if reference is None else (reference[0].uri, reference[1])
    input_reference = InputReference(
        ref=payload, place=at, bytes=len(data), preview=text[:PREVIEW_CHARACTERS]
    )
    return {"input_ref": input_reference}
