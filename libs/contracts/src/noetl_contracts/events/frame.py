"""What happens to a frame: a window of rows that one worker executes as a whole."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import CommandId, FrameId, StageId, WorkerId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope


class FrameDispatched(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="frame.dispatched",
):
    """The frame's rows are recorded and `attempt` of it has an owner."""

    frame_id: FrameId
    stage_id: StageId
    step: str
    command_id: CommandId
    slot: int
    frame_index: int
    attempt: int
    fence: int
    row_count: int
    rows_ref: PayloadRef
    worker_id: WorkerId
    parent_frame_id: FrameId | None = None
    recovery: dict[str, Any] | None = None


class FrameStarted(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="frame.started",
):
    """The body began."""

    frame_id: FrameId
    stage_id: StageId
    step: str
    attempt: int
    worker_id: WorkerId


class FrameHeartbeat(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="frame.heartbeat",
):
    """The owner is still at work."""

    frame_id: FrameId
    stage_id: StageId
    step: str
    attempt: int
    worker_id: WorkerId
    rows_done: int = 0


class FrameAbandoned(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="frame.abandoned",
):
    """The owner lost its lease before the frame was terminal."""

    frame_id: FrameId
    stage_id: StageId
    step: str
    attempt: int
    reason: str
    previous_owner: WorkerId | None = None


class FrameCommitted(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="frame.committed",
):
    """Every row of the frame succeeded and its result is durable."""

    frame_id: FrameId
    stage_id: StageId
    step: str
    slot: int
    frame_index: int
    attempt: int
    row_count: int
    worker_id: WorkerId
    result: ResultEnvelope | None = None
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    parent_frame_id: FrameId | None = None


class FrameFailed(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="frame.failed",
):
    """At least one row failed after its policies, or the attempts are exhausted."""

    frame_id: FrameId
    stage_id: StageId
    step: str
    slot: int
    frame_index: int
    attempt: int
    row_count: int
    rows_failed: int
    error: ErrorObject
    worker_id: WorkerId | None = None
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)


class FrameCommitRejected(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="frame.commit_rejected",
):
    """A commit bore an old fence; it changed nothing."""

    frame_id: FrameId
    stage_id: StageId
    step: str
    attempt: int
    current_fence: int
    reason: str
    worker_id: WorkerId | None = None
