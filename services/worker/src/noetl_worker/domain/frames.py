"""Frames in the worker: windows of rows with their policy, stored record and outcome."""

from typing import Any, Literal

from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import InnerCut
from noetl_contracts.commands.task_metrics import MetricsByTask
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import ExecutionId, FrameId, StageId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_playbook.model import coercion

Row = dict[str, Any]


class FramePolicy(Struct, frozen=True, kw_only=True):
    """The numbers of a frame, rendered by the planner.

    With `failed_max` the frame stops once more rows have failed; those in flight are cancelled.
    With `inside` the frame is a whole `exec: local` loop, which the worker cuts into units.
    """

    max_rows: int = 1
    max_seconds: float = 30.0
    max_bytes: int = 64 * 1024 * 1024
    row_concurrency: int = 1
    process: Literal["row", "frame"] = "row"
    transaction: bool = False
    failed_max: int | None = None
    inside: InnerCut | None = None


class FrameRecord(Struct, frozen=True, kw_only=True):
    """A frame's own object in the payload store, written once, before its body runs.

    It holds the rows themselves, so that recording a frame is one write; `rows_ref` of every
    event refers to it. A continuation runs the rows that an earlier frame left: `root_frame_id` is
    the frame that claimed them, `base_index` the index of its first row there. `command_id`,
    `fence` (the attempt) and `holder` (the delivery) name the run that wrote it.
    """

    rows: list[Row]
    fence: int
    root_frame_id: FrameId
    base_index: int = 0
    parent_frame_id: FrameId | None = None
    command_id: str = ""
    holder: str = ""


class Takeover(Struct, frozen=True, kw_only=True):
    """Who runs an earlier attempt's frame again, written behind the others before its body runs.

    A frame's record names its first runner only; without this, an attempt's command that arrives
    twice would find nobody of its own attempt and run twice, one that arrives after a later attempt
    began would run beside it, and an attempt of which no report arrived would leave no trace.
    `resumes` a frame that waited: the same dispatch, going on.
    """

    command_id: str
    fence: int
    holder: str
    resumes: bool = False


class CollectionSlice(Struct, frozen=True, kw_only=True):
    """Where a frame's rows stand in a collection; `indices` are their places if it was regrouped.

    `shard_key` is set for a shard; `done` and `failed` are the loop's counts at dispatch.
    """

    total: int
    done: int = 0
    failed: int = 0
    indices: list[int] | None = None
    shard_key: str | None = None


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
    rows: list[Any]
    policy: FramePolicy
    policy_names: dict[str, Any] = {}
    parent_frame_id: FrameId | None = None
    sliced: CollectionSlice | None = None
    # Whether outputs above its bytes may go to the payload store while it runs.
    may_flush: bool = False
    # Whether its rows may wait for something: then it is let go and taken up again.
    may_park: bool = False

    def get_row_index(self, row: int) -> int:
        """Return a row's place in its collection, or in the claim that took it."""
        if self.sliced is not None and self.sliced.indices:
            return self.sliced.indices[row]
        return self.base_index + row


class FrameResult(Struct, frozen=True, kw_only=True):
    """What became of a frame's rows; `remaining` were not started within its seconds.

    `rows_cancelled` never ended because too many others had failed; their results are null.
    `kept` stands for the results where they were too large to be held together.
    """

    rows_done: int
    rows_failed: int
    error: ErrorObject | None
    patch: dict[str, Any]
    results: list[Any]
    remaining: list[Any]
    duration_s: float
    rows_cancelled: int = 0
    kept: ResultEnvelope | None = None
    metrics: MetricsByTask = {}


class FrameOutcome(Struct, frozen=True, kw_only=True):
    """What became of a recorded frame, its results stored: the last `rows_left` did not start."""

    result: FrameResult
    rows_left: int = 0
    envelope: ResultEnvelope | None = None


class ForeignRows(Exception):  # noqa: N818 - it says what was found
    """A claim returned rows that bear another frame's identity."""


def parse_policy(policy: dict[str, Any]) -> FramePolicy:
    """Read the numbers that a frame runner needs from a rendered policy."""
    policy_fields = {key: policy[key] for key in FramePolicy.__struct_fields__ if key in policy}
    is_one = coercion.coerce_boolean(policy.get("transaction")) or False
    return codec.convert_value({**policy_fields, "transaction": is_one}, FramePolicy)


def compute_rows_max(policy: FramePolicy, *, rows: int, size_bytes: int) -> int:
    """Return how many rows to claim next: fewer when so many took more bytes than a frame may."""
    if size_bytes <= policy.max_bytes:
        return policy.max_rows
    return max(1, min(policy.max_rows, rows * policy.max_bytes // size_bytes))


def with_shard_key(frame: Frame, key: str) -> Frame:
    """Give a shard the key that names its effects."""
    if frame.sliced is None:
        return frame
    return structs.replace(frame, sliced=structs.replace(frame.sliced, shard_key=key))


def build_record_name(execution_id: ExecutionId, frame_id: FrameId) -> str:
    """Name a frame's record in the payload store."""
    return f"frames/{execution_id}/{frame_id}"


def build_takeover_name(execution_id: ExecutionId, frame_id: FrameId, *, place: int) -> str:
    """Name what says who runs a frame again: of those who do so, the first has place 1."""
    return f"{build_record_name(execution_id, frame_id)}.again-{place}"


def check_frame_rows(rows: list[Row], frame_id: FrameId) -> None:
    """Refuse rows of another frame; raises `ForeignRows`."""
    for row in rows:
        frame_rows = row.get("frame_id", frame_id)
        if frame_rows is not None and str(frame_rows) != frame_id:
            raise ForeignRows(
                f"the claim for frame {frame_id} returned a row of frame {frame_rows}: "
                "let it return only rows that it takes under __frame_id"
            )
