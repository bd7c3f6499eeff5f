"""What happens to one epoch of a loop."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import RunId, StageId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.slicing import Cut, Form
from noetl_contracts.taken_items import TakenItems


class LoopStats(Struct, frozen=True, kw_only=True):
    """Counts of units after their own policies."""

    total: int = 0
    success: int = 0
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0
    retried: int = 0
    frames: int = 0
    frames_failed: int = 0
    rows_claimed: int = 0


class LoopStarted(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="loop.started",
):
    """The collection is fixed, or the slots are open.

    With a `cut` the units are frames of `stage_id`; `counts_frames` says that `total` counts
    them, and not the items. What is `taken` over from an earlier execution does not run.
    """

    step: str
    run_id: RunId
    mode: str
    max_in_flight: int
    total: int | None = None
    collection: list[Any] | None = None
    collection_ref: PayloadRef | None = None
    stage_id: StageId | None = None
    collection_form: Form = Form.LIST
    cut: Cut | None = None
    counts_frames: bool = False
    notes: list[str] = msgspec.field(default_factory=list)
    taken: TakenItems | None = None


class LoopResized(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="loop.resized",
):
    """From now on so many units run at once."""

    step: str
    run_id: RunId
    max_in_flight: int


class LoopDone(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event_type", tag="loop.done"
):
    """The last unit ended and the outcome is ok."""

    step: str
    run_id: RunId
    stats: LoopStats
    result: ResultEnvelope
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
    stage_id: StageId | None = None


class LoopFailed(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event_type", tag="loop.failed"
):
    """The last unit ended and the failure policy calls the outcome an error."""

    step: str
    run_id: RunId
    stats: LoopStats
    error: ErrorObject
    result: ResultEnvelope | None = None
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
    stage_id: StageId | None = None
