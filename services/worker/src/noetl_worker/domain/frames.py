"""Frames as a worker sees them: their policy, their record, and what remains of them."""

from typing import Any, Literal

from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import ExecutionId, FrameId, StageId
from noetl_contracts.payloads import PayloadRef

Row = dict[str, Any]


class FramePolicy(Struct, frozen=True, kw_only=True):
    """The numbers of a frame, rendered by the planner."""

    max_rows: int = 1
    max_seconds: float = 30.0
    max_bytes: int = 64 * 1024 * 1024
    row_concurrency: int = 1
    process: Literal["row", "frame"] = "row"
    transaction: bool = False


class FrameRecord(Struct, frozen=True, kw_only=True):
    """A frame's own object in the payload store, written once, before its body runs.

    It holds the rows themselves, so that recording a frame is one write; `rows_ref` of every
    event refers to it. `root_frame_id` and `base_index` place a continuation's rows in the frame
    that claimed them. `command_id`, `fence` and `holder` name the delivery that wrote it.
    """

    rows: list[Row]
    fence: int
    root_frame_id: FrameId
    base_index: int = 0
    parent_frame_id: FrameId | None = None
    command_id: str = ""
    holder: str = ""


class Frame(Struct, frozen=True, kw_only=True):
    """A recorded window of rows that is about to run."""

    frame_id: FrameId
    root_frame_id: FrameId
    stage_id: StageId
    slot: int
    frame_index: int
    base_index: int
    attempt: int
    rows_ref: PayloadRef
    rows: list[Row]
    policy: FramePolicy
    policy_names: dict[str, Any] = {}
    parent_frame_id: FrameId | None = None


class FrameResult(Struct, frozen=True, kw_only=True):
    """What became of a frame's rows; `remaining` were not started within its seconds."""

    rows_done: int
    rows_failed: int
    error: ErrorObject | None
    patch: dict[str, Any]
    results: list[Any]
    remaining: list[Row]
    duration_s: float


class ForeignRows(Exception):  # noqa: N818 - it says what was found
    """A claim returned rows that bear another frame's identity."""


def record_name(execution_id: ExecutionId, frame_id: FrameId) -> str:
    """Name a frame's record in the payload store."""
    return f"frames/{execution_id}/{frame_id}"


def check_rows(rows: list[Row], frame_id: FrameId) -> None:
    """Refuse rows of another frame; raises `ForeignRows`."""
    for row in rows:
        found = row.get("frame_id", frame_id)
        if found is not None and str(found) != frame_id:
            raise ForeignRows(
                f"the claim for frame {frame_id} returned a row of frame {found}: "
                "let it return only rows that it takes under __frame_id"
            )
