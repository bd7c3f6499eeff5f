"""What happens to a frame: a window of rows that one worker executes as a whole."""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.commands.loop_collections import UnitsEnd
from noetl_contracts.commands.task_metrics import MetricsByTask
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
    """The frame's rows are recorded and `attempt` of it has an owner, or is on its way to one.

    `start` is the first item of the slice of a collection that the frame runs.
    """

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
    worker_id: WorkerId | None = None
    parent_frame_id: FrameId | None = None
    recovery: dict[str, Any] | None = None
    start: int | None = None


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
    """The owner lost its lease, or its body failed, and the frame is to run again.

    `retry_at` is the instant before which it is not dispatched.
    """

    frame_id: FrameId
    stage_id: StageId
    step: str
    attempt: int
    reason: str
    previous_worker: WorkerId | None = None
    retry_at: datetime | None = None
    error: ErrorObject | None = None


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
    rows_left: int = 0
    key: str | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    units: UnitsEnd | None = None
    tasks: MetricsByTask = msgspec.field(default_factory=dict)


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
    result: ResultEnvelope | None = None
    rows_left: int = 0
    key: str | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    units: UnitsEnd | None = None
    tasks: MetricsByTask = msgspec.field(default_factory=dict)


FrameEnd = FrameCommitted | FrameFailed


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
    current_attempt: int
    reason: str
    worker_id: WorkerId | None = None
