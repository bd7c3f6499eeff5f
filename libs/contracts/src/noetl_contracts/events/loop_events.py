"""Events of loops and stages: opened, resized, completed and failed; shards and reduce levels."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.commands.loop_collections import CollectionCut, CollectionForm, TakenItems
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import CommandId, FrameId, RunId, StageId, WorkerId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.status import StageKind, StageStatus


class StageOpened(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="stage.opened",
):
    """Frames of this stage may now be claimed."""

    stage_id: StageId
    run_id: RunId
    step: str
    kind: StageKind
    slots: int
    frame_policy: dict[str, Any] = msgspec.field(default_factory=dict)
    parent_stage_id: StageId | None = None


class StageClosed(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="stage.closed",
):
    """All frames are terminal and no slot can find more."""

    stage_id: StageId
    run_id: RunId
    step: str
    status: StageStatus
    frames: int
    rows: int
    frames_failed: int = 0


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
    `may_batch` says that one command may run several items, one after another.
    """

    step: str
    run_id: RunId
    mode: str
    max_in_flight: int
    total: int | None = None
    collection: list[Any] | None = None
    collection_ref: PayloadRef | None = None
    stage_id: StageId | None = None
    collection_form: CollectionForm = CollectionForm.LIST
    cut: CollectionCut | None = None
    counts_frames: bool = False
    notes: list[str] = msgspec.field(default_factory=list)
    taken: TakenItems | None = None
    may_batch: bool = False


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


class LoopItemsReturned(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="loop.items_returned",
):
    """A worker gave items of a batch back before it began them: others may run them now.

    `losses` is how often each may have been begun and lost before.
    """

    step: str
    run_id: RunId
    command_id: CommandId
    attempt: int
    worker_id: WorkerId | None = None
    items: list[int] = msgspec.field(default_factory=list)
    losses: int = 0


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


class LoopFanoutStarted(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="loop.fanout.started",
):
    """A collection was cut into shards."""

    step: str
    run_id: RunId
    stage_id: StageId
    items: int
    shards: int
    max_in_flight: int


class LoopShardEnqueued(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="loop.shard.enqueued",
):
    """A shard was handed out for the first time; its frame's events tell the rest."""

    step: str
    run_id: RunId
    stage_id: StageId
    frame_id: FrameId
    shard: int
    items: int


class LoopShardDone(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="loop.shard.done",
):
    """A shard succeeded."""

    step: str
    run_id: RunId
    stage_id: StageId
    frame_id: FrameId
    shard: int
    attempt: int
    key: str | None = None


class LoopShardFailed(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="loop.shard.failed",
):
    """A shard failed and is not tried again."""

    step: str
    run_id: RunId
    stage_id: StageId
    frame_id: FrameId
    shard: int
    attempt: int
    error: ErrorObject
    key: str | None = None


class LoopFaninCompleted(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="loop.fanin.completed",
):
    """Every shard ended; `status` is `complete`, `partial` or `failed`."""

    step: str
    run_id: RunId
    stage_id: StageId
    status: str
    total: int
    done: int
    failed: int = 0
    cancelled: int = 0
    retried: int = 0


class ReduceLevelOpened(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="reduce.level_opened",
):
    """The parts of one level are complete; groups of them may run."""

    step: str
    run_id: RunId
    stage_id: StageId
    level: int
    max_in_flight: int
    cut: CollectionCut
    parts_ref: PayloadRef
