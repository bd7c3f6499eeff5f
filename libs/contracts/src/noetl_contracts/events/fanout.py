"""What happens to a fan-out stage: shards of a collection, and their fan-in."""

from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import FrameId, RunId, StageId


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
