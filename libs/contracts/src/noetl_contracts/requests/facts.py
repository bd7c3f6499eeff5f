"""Facts: what someone observed or asked. Not yet true: the planner accepts or rejects them."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import UnitsEnd
from noetl_contracts.commands.state_values import IncrementRange, ProposedState
from noetl_contracts.commands.task_metrics import MetricsByTask
from noetl_contracts.commands.waits import ParentLink, Wait
from noetl_contracts.commands.worker_pools import Priority
from noetl_contracts.errors import ErrorObject, FailedTry, MalformedMessage
from noetl_contracts.events.execution_events import InheritedStep, RerunSource
from noetl_contracts.identity.actors import Actor
from noetl_contracts.ids import (
    CommandId,
    ExecutionId,
    FrameId,
    OrganizationId,
    StageId,
    TenantId,
    WorkerId,
)
from noetl_contracts.payloads import PayloadRef, ResultEnvelope

# The reason of a nudge after a long silence: what was sent may have been lost.
STALLED = "stalled"


class InheritedState(Struct, frozen=True, kw_only=True):
    """What an execution takes over from the one that it repeats from a step on."""

    workload: dict[str, Any] = msgspec.field(default_factory=dict)
    ctx: dict[str, Any] = msgspec.field(default_factory=dict)
    steps: list[InheritedStep] = msgspec.field(default_factory=list)


class Rerun(Struct, frozen=True, kw_only=True):
    """Where to begin instead of the entry, and with what: inline, or by reference when large.

    What repeats a backfill reads its range.
    """

    source: RerunSource
    came_from: str | None = None
    inherited: InheritedState | None = None
    inherited_ref: PayloadRef | None = None
    backfill: IncrementRange | UnsetType = UNSET


class ExecutionRequested(Struct, frozen=True, kw_only=True, tag_field="fact", tag="execution"):
    """Someone asked to run a playbook; `parent` is the task that waits for it, if one does.

    The inputs are `workload`, or the payload at `workload_ref` when they are large. `pool` and
    `priority` hold for every step that names none itself. `correlation_id` names the flow that the
    execution is a part of, else it begins one. `files_digest` says that its files have a version.
    `backfill` is the range that steps with increments read instead of their states.
    """

    path: str
    version: int | None = None
    workload: dict[str, Any] = msgspec.field(default_factory=dict)
    parent_execution_id: ExecutionId | None = None
    requested_by: str | None = None
    workload_ref: PayloadRef | None = None
    rerun: Rerun | None = None
    parent: ParentLink | None = None
    pool: str | None = None
    priority: Priority | None = None
    correlation_id: str | None = None
    files_digest: str | None = None
    backfill: IncrementRange | UnsetType = UNSET


class CancelRequested(Struct, frozen=True, kw_only=True, tag_field="fact", tag="cancel"):
    """Someone asked to stop an execution, and with `cascade` its children."""

    reason: str | None = None
    requested_by: str | None = None
    cascade: bool = True


class PauseRequested(Struct, frozen=True, kw_only=True, tag_field="fact", tag="pause"):
    """Someone asked that nothing more be dispatched for now.

    `request_id` makes a repetition of this very wish recognisable, also after it was undone.
    """

    request_id: str
    reason: str | None = None
    requested_by: str | None = None


class ResumeRequested(Struct, frozen=True, kw_only=True, tag_field="fact", tag="resume"):
    """Someone asked a paused execution to go on."""

    request_id: str
    requested_by: str | None = None


class CtxWriteRequested(Struct, frozen=True, kw_only=True, tag_field="fact", tag="ctx_write"):
    """Someone asked to write top-level `ctx` keys, and to remove others, from outside."""

    request_id: str
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
    removed: list[str] = msgspec.field(default_factory=list)
    requested_by: str | None = None


class CommandStarted(Struct, frozen=True, kw_only=True, tag_field="fact", tag="command_started"):
    """A worker took an attempt of a command; `max_distance` is how far its inputs might be."""

    command_id: CommandId
    attempt: int
    worker_id: WorkerId
    worker_locator: str | None = None
    locality: dict[str, Any] = msgspec.field(default_factory=dict)
    max_distance: str | None = None


class CommandHeartbeat(
    Struct, frozen=True, kw_only=True, tag_field="fact", tag="command_heartbeat"
):
    """A worker still holds a command, and says how many it runs of how many it could."""

    command_id: CommandId
    attempt: int
    worker_id: WorkerId
    running: int = 0
    capacity: int = 0


class CommandCompleted(
    Struct, frozen=True, kw_only=True, tag_field="fact", tag="command_completed"
):
    """A step or item succeeded: its `ctx` writes, the `tries` that failed, what its `tasks` did.

    `state` says how far a step with `incremental` has read its source. `item_index` names the item
    of a command that runs several.
    """

    command_id: CommandId
    attempt: int
    worker_id: WorkerId
    result: ResultEnvelope
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    notes: list[str] = msgspec.field(default_factory=list)
    tries: list[FailedTry] = msgspec.field(default_factory=list)
    tasks: MetricsByTask = msgspec.field(default_factory=dict)
    state: ProposedState | UnsetType = UNSET
    item_index: int | UnsetType = UNSET


class CommandFailed(Struct, frozen=True, kw_only=True, tag_field="fact", tag="command_failed"):
    """A step, item or slot failed after its own policies.

    `item_index` names the item of a command that runs several; without it all of them failed.
    """

    command_id: CommandId
    attempt: int
    worker_id: WorkerId
    error: ErrorObject
    result: ResultEnvelope | None = None
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
    tasks: MetricsByTask = msgspec.field(default_factory=dict)
    item_index: int | UnsetType = UNSET


class CommandLost(Struct, frozen=True, kw_only=True, tag_field="fact", tag="command_lost"):
    """The lease of an attempt ended: JetStream redelivered it, or the reaper saw it pass.

    `is_release` marks a worker that gave the command back while draining: not a failure, so it
    does not count against the attempts.
    """

    command_id: CommandId
    attempt: int
    reason: str
    is_release: bool = False


class CommandStopped(Struct, frozen=True, kw_only=True, tag_field="fact", tag="command_stopped"):
    """A worker stopped a command because its execution is being cancelled."""

    command_id: CommandId
    attempt: int
    worker_id: WorkerId


class ChunkEmitted(Struct, frozen=True, kw_only=True, tag_field="fact", tag="chunk_emitted"):
    """A task that streams has stored its next chunk; `index` counts from 0 within the run."""

    command_id: CommandId
    attempt: int
    worker_id: WorkerId
    index: int
    row_count: int
    ref: PayloadRef
    has_more: bool


class CommandParked(Struct, frozen=True, kw_only=True, tag_field="fact", tag="command_parked"):
    """A worker kept a pipeline that waits for something else, and let its command go."""

    command_id: CommandId
    attempt: int
    worker_id: WorkerId
    resume_ref: PayloadRef
    wait: Wait
    frame_id: FrameId | None = None  # whose row waits; an earlier release leaves it out
    item_index: int | UnsetType = UNSET  # which item of a batch waits


class ItemsReturned(Struct, frozen=True, kw_only=True, tag_field="fact", tag="items_returned"):
    """A worker gives items of a batch back that it has not begun."""

    command_id: CommandId
    attempt: int
    worker_id: WorkerId
    items: list[int]


class MessageArrived(Struct, frozen=True, kw_only=True, tag_field="fact", tag="message_arrived"):
    """Someone sent the message that a parked command waits for; `key` names its wait."""

    command_id: CommandId
    key: str
    result: ResultEnvelope


class ChildEnded(Struct, frozen=True, kw_only=True, tag_field="fact", tag="child_ended"):
    """A child execution tells its parent's command how it ended."""

    command_id: CommandId
    key: str
    child_execution_id: ExecutionId
    status: str
    result: ResultEnvelope | None = None
    error: ErrorObject | None = None


class FrameOpened(Struct, frozen=True, kw_only=True, tag_field="fact", tag="frame_opened"):
    """A slot recorded a window of rows and is about to run it.

    `attempts_before` counts the dispatches that the frame's record and takeovers in the payload
    store show beyond those that this worker was told of: facts about them were lost on the way.
    """

    command_id: CommandId
    attempt: int
    worker_id: WorkerId
    stage_id: StageId
    frame_id: FrameId
    slot: int
    frame_index: int
    row_count: int
    rows_ref: PayloadRef
    parent_frame_id: FrameId | None = None
    attempts_before: int = 0


class FrameClosed(Struct, frozen=True, kw_only=True, tag_field="fact", tag="frame_closed"):
    """A slot, or the command of a frame, finished a frame; `rows_failed` above 0 makes it failed.

    `rows_left` were not started in the frame's time; `key` names a shard for its effects;
    `units` says what became of the units that the frame was cut into by its worker.
    """

    command_id: CommandId
    attempt: int
    worker_id: WorkerId
    stage_id: StageId
    frame_id: FrameId
    slot: int
    frame_index: int
    row_count: int
    rows_failed: int = 0
    error: ErrorObject | None = None
    result: ResultEnvelope | None = None
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    parent_frame_id: FrameId | None = None
    rows_left: int = 0
    key: str | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    units: UnitsEnd | None = None
    tasks: MetricsByTask = msgspec.field(default_factory=dict)


class FilesChanged(Struct, frozen=True, kw_only=True, tag_field="fact", tag="files_changed"):
    """A task changed files of the execution; `entries` is how long their journal is by now."""

    command_id: CommandId
    attempt: int
    entries: int


class SlotDry(Struct, frozen=True, kw_only=True, tag_field="fact", tag="slot_dry"):
    """A slot's latest claim found nothing; `frames` counts the frames that this command closed."""

    command_id: CommandId
    attempt: int
    worker_id: WorkerId
    frames: int
    next_index: int
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)


class ItemsCollected(Struct, frozen=True, kw_only=True, tag_field="fact", tag="items_collected"):
    """The planner's shell gathered the results of a finished loop into one payload.

    With `error` it could not: what a unit left as its result cannot be read.
    """

    run_id: str
    result: ResultEnvelope
    error: ErrorObject | None = None


class PartsCollected(Struct, frozen=True, kw_only=True, tag_field="fact", tag="parts_collected"):
    """The planner's shell gathered the outputs of one level of a reduce stage."""

    run_id: str
    level: int
    parts_ref: PayloadRef
    parts: int


class TimerDue(Struct, frozen=True, kw_only=True, tag_field="fact", tag="timer_due"):
    """A deadline that the state names may have passed; `STALLED` is the reaper's nudge."""

    reason: str = "timer"


Fact = (
    ExecutionRequested
    | CancelRequested
    | PauseRequested
    | ResumeRequested
    | CtxWriteRequested
    | CommandStarted
    | CommandHeartbeat
    | CommandCompleted
    | CommandFailed
    | CommandLost
    | CommandStopped
    | ChunkEmitted
    | CommandParked
    | ItemsReturned
    | ChildEnded
    | MessageArrived
    | FrameOpened
    | FrameClosed
    | FilesChanged
    | SlotDry
    | ItemsCollected
    | PartsCollected
    | TimerDue
)


class FactBatch(Struct, frozen=True, kw_only=True):
    """Facts of one execution in the order in which they were observed: one ingest message.

    `key` names it, or its first facts beside those of other commands: the message's deduplication
    id names all of them. `request_id` is the durable request that is settled with the events, and
    `actor` who asked for it: workers' reports have none.
    """

    key: str
    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    producer: str
    facts: list[Fact]
    request_id: str | None = None
    traceparent: str | None = None
    actor: Actor | UnsetType = UNSET


def encode_fact_batch(batch: FactBatch, encoded: Iterable[bytes]) -> bytes:
    """Encode a batch with facts that are encoded already, in the place of its own."""
    return codec.encode_json(structs.replace(batch, facts=[Raw(item) for item in encoded]))


class _RawBatch(FactBatch, frozen=True, kw_only=True):
    """A batch whose facts have not been read."""

    facts: list[Raw]  # type: ignore[assignment]  # the same field, before it is read


def decode_valid_facts(data: bytes) -> tuple[FactBatch, list[MalformedMessage]]:
    """Decode what fits of a message of `NOETL_INGEST`, and say of every other fact why it does not.

    Raises `MalformedMessage` when the message itself is none.
    """
    try:
        return codec.decode_as(data, FactBatch), []
    except msgspec.DecodeError as failure:
        return _decode_facts_singly(data, failure)


def _decode_facts_singly(
    data: bytes, failure: msgspec.DecodeError
) -> tuple[FactBatch, list[MalformedMessage]]:
    try:
        raw = codec.decode_as(data, _RawBatch)
    except msgspec.DecodeError:
        raise MalformedMessage(f"a fact batch does not fit its schema: {failure}") from failure
    facts: list[Fact] = []
    misfits = []
    for place, item in enumerate(raw.facts):
        try:
            facts.append(codec.decode_as(bytes(item), Fact))  # type: ignore[arg-type]  # a union
        except msgspec.DecodeError as misfit:
            misfits.append(MalformedMessage(f"fact {place} does not fit its schema: {misfit}"))
    batch = FactBatch(**{**structs.asdict(raw), "facts": facts})
    return batch, misfits


def decode_fact_batch(data: bytes) -> FactBatch:
    """Decode a message of `NOETL_INGEST`; raises `MalformedMessage`."""
    try:
        return codec.decode_as(data, FactBatch)
    except msgspec.DecodeError as failure:
        raise MalformedMessage(f"a fact batch does not fit its schema: {failure}") from failure
