"""The state of one execution: counters and open work only, never a list of finished items.

A state has one owner, the caller of the fold: `fold.evolve` consumes its argument and returns it
changed, so that an event costs what it touches and not what the execution has already done.
"""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from noetl_contracts.commands.command_work import Chunk
from noetl_contracts.commands.loop_collections import CollectionCut, CollectionForm
from noetl_contracts.commands.state_values import Increment, IncrementRange, StateRecord
from noetl_contracts.commands.task_metrics import MetricsByTask
from noetl_contracts.commands.waits import ChildWait, ParentLink, Resume, Wait
from noetl_contracts.commands.worker_pools import Priority
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events.execution_events import RerunSource
from noetl_contracts.events.loop_events import LoopStats
from noetl_contracts.identity.actors import Actor
from noetl_contracts.ids import (
    CatalogId,
    CommandId,
    EventId,
    ExecutionId,
    FrameId,
    OrganizationId,
    RunId,
    StageId,
    TenantId,
    WorkerId,
)
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.status import (
    CommandStatus,
    ExecutionStatus,
    FrameStatus,
    RunStatus,
    StageKind,
    StageStatus,
)


class ParkedState(Struct, frozen=True, kw_only=True):
    """What a parked command waits for, and where its pipeline is kept."""

    wait: Wait
    resume_ref: PayloadRef


class ChildState(Struct, frozen=True, kw_only=True):
    """A child execution that has not reported its end."""

    child_execution_id: ExecutionId
    command_id: CommandId
    step: str
    wait: ChildWait


class CommandState(Struct, kw_only=True):
    """A command, from its issue until it is terminal.

    `batch` are the items of a command for several that it has neither ended nor given back.
    """

    command_id: CommandId
    run_id: RunId
    step: str
    unit: str
    pool: str
    lane: str
    attempts_max: int
    issued_event_id: EventId
    issued_at: datetime
    heard_at: datetime
    attempt: int = 1
    losses: int = 0
    status: CommandStatus = CommandStatus.ISSUED
    worker_id: WorkerId | None = None
    worker_locator: str | None = None
    locality: dict[str, Any] = msgspec.field(default_factory=dict)
    stage_id: StageId | None = None
    slot: int | None = None
    item_index: int | None = None
    frame_id: FrameId | None = None
    started_event_id: EventId | None = None
    terminal_event_id: EventId | None = None
    completed_at: datetime | None = None
    rejected: int = 0
    parked: ParkedState | None = None
    child_id: ExecutionId | None = None
    resume: Resume | None = None
    source_locality: dict[str, str] = msgspec.field(default_factory=dict)
    target: WorkerId | None = None
    batch: list[int] | UnsetType = UNSET


class FrameState(Struct, kw_only=True):
    """A frame, from its first dispatch until it is terminal."""

    frame_id: FrameId
    stage_id: StageId
    command_id: CommandId
    step: str
    slot: int
    frame_index: int
    row_count: int
    rows_ref: PayloadRef
    claimed_event_id: EventId
    created_at: datetime
    fence: int = 1
    attempts: int = 1
    status: FrameStatus = FrameStatus.CLAIMED
    owner_worker: WorkerId | None = None
    parent_frame_id: FrameId | None = None
    terminal_event_id: EventId | None = None
    completed_at: datetime | None = None
    rows_failed: int = 0
    output_ref: ResultEnvelope | None = None
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    start: int | None = None
    retry_at: datetime | None = None


class StageState(Struct, kw_only=True):
    """A stage, from opened to closed."""

    stage_id: StageId
    run_id: RunId
    step: str
    kind: StageKind
    slots: int
    frame_policy: dict[str, Any]
    opened_event_id: EventId
    started_at: datetime
    status: StageStatus = StageStatus.OPEN
    frames: int = 0
    frames_failed: int = 0
    rows: int = 0
    rows_failed: int = 0
    closed_event_id: EventId | None = None
    ended_at: datetime | None = None
    # Not written where there is none, so that checksums of states stay.
    parent_stage_id: StageId | UnsetType = UNSET


class SlotState(Struct, kw_only=True):
    """One of a cursor loop's slots.

    `commits_floor` counts the epoch's frame commits that certainly precede the slot's latest
    claim: the drain rule compares it with all commits. `rows_left` of its latest frame were not
    started in time: the frame after it continues with them.
    """

    slot: int
    command_id: CommandId | None = None
    rounds: int = 0
    is_dry: bool = False
    has_failed: bool = False
    next_index: int = 0
    open_frame_id: FrameId | None = None
    rows_left: int = 0
    commits_floor: int = 0
    frames_in_round: int = 0
    claimed_at: datetime | None = None


class ReturnedItem(Struct, frozen=True, kw_only=True):
    """An item that a batch gave back: the latest attempt that had it, and how many were lost."""

    attempt: int
    losses: int = 0


class LoopState(Struct, kw_only=True):
    """One epoch of a loop: counters, and slots for a cursor.

    With a `cut` its units are frames; `next_index` is the next unit then, and `units_ok` and
    `units_failed` count them. `retry_at` holds the frames that wait to be handed out again.
    With `may_batch` a command may run a batch of items, and counts once as `in_flight`; `item_us`
    is how many microseconds an item took lately, and `returned` are items that were given back.
    """

    run_id: RunId
    step: str
    mode: str
    max_in_flight: int
    started_at: datetime
    total: int = 0
    next_index: int = 0
    in_flight: int = 0
    success: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    commits: int = 0
    is_finished: bool = False
    is_stopping: bool = False
    first_error: ErrorObject | None = None
    collection: list[Any] | None = None
    collection_ref: PayloadRef | None = None
    collection_form: CollectionForm = CollectionForm.LIST
    cut: CollectionCut | None = None
    counts_frames: bool = False
    level: int = 0
    units_ok: int = 0
    units_failed: int = 0
    retry_at: dict[FrameId, datetime] = msgspec.field(default_factory=dict)
    stage_id: StageId | None = None
    slots: list[SlotState] = msgspec.field(default_factory=list)
    status: RunStatus = RunStatus.RUNNING
    stats: LoopStats | None = None
    last_event_id: EventId | None = None
    # What the places of all its units so far share; None before the first has ended.
    locality: dict[str, str] | None = None
    may_batch: bool | UnsetType = UNSET
    item_us: int | UnsetType = UNSET
    returned: dict[int, ReturnedItem] | UnsetType = UNSET


class OpenChunk(Struct, kw_only=True):
    """A chunk that has activations which are not terminal."""

    open: int
    has_failed: bool = False


class StreamState(Struct, kw_only=True):
    """What a run has streamed so far: counters, and the chunks that are not done with.

    `targets` are the runs that handle the chunks, by their steps.
    """

    command_id: CommandId
    received: int = 0
    done: int = 0
    failed: int = 0
    open: dict[int, OpenChunk] = msgspec.field(default_factory=dict)
    targets: dict[str, RunId] = msgspec.field(default_factory=dict)
    has_ended: bool = False
    error: ErrorObject | None = None
    first_error: ErrorObject | None = None


class FeedState(Struct, kw_only=True):
    """Where a run's chunks come from; `open` are those that wait or run, by activation."""

    producer: RunId
    open: dict[int, Chunk] = msgspec.field(default_factory=dict)


class RunState(Struct, kw_only=True):
    """A live activation of a step.

    `ref_id` is its result, where that is stored, and `parent_ref_id` the stored one before it.
    `tasks` adds up what its commands and frames say that they did.
    """

    run_id: RunId
    step: str
    activation: int
    entered_at: datetime
    came_from: str | None = None
    expires_at: datetime | None = None
    loop: LoopState | None = None
    stream: StreamState | None = None
    feed: FeedState | None = None
    failure: ErrorObject | None = None
    entered_version: int = 0
    parent_ref_id: EventId | None = None
    ref_id: EventId | None = None
    tasks: MetricsByTask = msgspec.field(default_factory=dict)
    # Not written where there is none, so that checksums of states stay.
    increment: Increment | UnsetType = UNSET
    due_at: datetime | UnsetType = UNSET


class LateMark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is late since when: the execution, or a step's activation; and when that ended."""

    since: datetime
    step: str | None = None
    run_id: RunId | None = None
    ended_at: datetime | None = None


class StepState(Struct, kw_only=True):
    """What is remembered of a step across its activations: the latest outcome, who made it when."""

    step: str
    activations: int = 0
    status: RunStatus = RunStatus.PENDING
    run_id: RunId | None = None
    result: ResultEnvelope | None = None
    error: ErrorObject | None = None
    attempt: int = 1
    worker_id: WorkerId | None = None
    locality: dict[str, str] = msgspec.field(default_factory=dict)
    started_at: datetime | None = None
    ended_at: datetime | None = None


class ObjectState(Struct, kw_only=True):
    """An object of the playbook's domain; `version` counts its changes."""

    object_id: str
    object_type: str
    first_event_id: EventId
    created_at: datetime
    version: int = 0
    status: str | None = None
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    payload_refs: list[PayloadRef] = msgspec.field(default_factory=list)
    is_deleted: bool = False
    last_event_id: EventId | None = None
    updated_at: datetime | None = None


class Changes(Struct, kw_only=True):
    """What events have touched since the last taking, terminal things included."""

    frames: dict[FrameId, FrameState] = msgspec.field(default_factory=dict)
    stages: dict[StageId, StageState] = msgspec.field(default_factory=dict)
    commands: dict[CommandId, CommandState] = msgspec.field(default_factory=dict)
    loops: dict[RunId, LoopState] = msgspec.field(default_factory=dict)
    objects: dict[str, ObjectState] = msgspec.field(default_factory=dict)
    results: "dict[EventId, StoredResult]" = msgspec.field(default_factory=dict)


class ExecutionState(Struct, kw_only=True):
    """Everything that is needed to decide what an execution does next.

    `lineage` says, for what `tokens` were placed for, which stored result led there. `values` are
    those of `state` as the execution last read or changed them. `due_at` is the deadline that has
    not passed yet, and `late` what has passed one, the latest.
    """

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    version: int = 0
    checksum: str = ""
    status: ExecutionStatus = ExecutionStatus.PENDING
    path: str = ""
    catalog_id: CatalogId = CatalogId("")
    catalog_version: int = 0
    playbook_digest: str = ""
    parent_execution_id: ExecutionId | None = None
    source: RerunSource | None = None
    parent: ParentLink | None = None
    # Of another flow than its own; not written where there is none, so that checksums stay.
    correlation_id: str | UnsetType = UNSET
    pool: str | None = None
    priority: Priority | None = None
    workload: dict[str, Any] = msgspec.field(default_factory=dict)
    workload_ref: PayloadRef | None = None
    ctx: dict[str, Any] = msgspec.field(default_factory=dict)
    activations: int = 0
    file_entries: int = 0
    steps: dict[str, StepState] = msgspec.field(default_factory=dict)
    runs: dict[RunId, RunState] = msgspec.field(default_factory=dict)
    tokens: dict[str, str | None] = msgspec.field(default_factory=dict)
    lineage: dict[str, EventId] = msgspec.field(default_factory=dict)
    commands: dict[CommandId, CommandState] = msgspec.field(default_factory=dict)
    frames: dict[FrameId, FrameState] = msgspec.field(default_factory=dict)
    stages: dict[StageId, StageState] = msgspec.field(default_factory=dict)
    children: dict[ExecutionId, ChildState] = msgspec.field(default_factory=dict)
    deadlines: dict[CommandId, datetime] = msgspec.field(default_factory=dict)
    offered: dict[CommandId, datetime] = msgspec.field(default_factory=dict)
    fenced: dict[CommandId, int] = msgspec.field(default_factory=dict)
    rejections: dict[str, None] = msgspec.field(default_factory=dict)
    failure: ErrorObject | None = None
    failed_step: str | None = None
    result: ResultEnvelope | None = None
    last_step: str | None = None
    last_event_id: EventId | None = None
    last_event_type: str | None = None
    warnings: int = 0
    frames_total: int = 0
    rows_total: int = 0
    started_at: datetime | None = None
    updated_at: datetime | None = None
    cancelling_at: datetime | None = None
    cancel_reason: str | None = None
    expires_at: datetime | None = None
    paused_at: datetime | None = None
    held: dict[CommandId, None] = msgspec.field(default_factory=dict)
    # Identities of requests that were granted, under the name that snapshots have for them.
    granted_requests: dict[str, None] = msgspec.field(default_factory=dict, name="wishes")
    objects: dict[str, ObjectState] = msgspec.field(default_factory=dict)
    ended_at: datetime | None = None
    # None of these is written where there is none, so that checksums stay.
    actor: Actor | UnsetType = UNSET
    backfill: IncrementRange | UnsetType = UNSET
    values: dict[str, StateRecord] | UnsetType = UNSET
    due_at: datetime | UnsetType = UNSET
    late: list[LateMark] | UnsetType = UNSET
    changes: Changes = msgspec.field(default_factory=Changes)

    def is_terminal(self) -> bool:
        """Tell whether nothing can change any more."""
        return self.ended_at is not None

    def is_halted(self) -> bool:
        """Tell whether nothing may be dispatched: it is paused, or being cancelled."""
        return self.paused_at is not None or self.cancelling_at is not None


def build_empty_state(
    execution_id: ExecutionId, tenant_id: TenantId, organization_id: OrganizationId
) -> ExecutionState:
    """Return the state before the first event."""
    return ExecutionState(
        execution_id=execution_id, tenant_id=tenant_id, organization_id=organization_id
    )


def take_changes(state: ExecutionState) -> Changes:
    """Hand over what was touched since the last taking, and forget it."""
    changes, state.changes = state.changes, Changes()
    return changes


REJECTIONS_MAX = 1024


def remember_rejection(state: ExecutionState, key: str) -> None:
    """Keep a rejection's key for as long as its repetition is likely."""
    state.rejections[key] = None
    forget_oldest(state.rejections, REJECTIONS_MAX)


def forget_oldest(entries: dict[Any, Any], entries_max: int) -> None:
    """Bound a mapping by dropping what was put first."""
    while len(entries) > entries_max:
        del entries[next(iter(entries))]


class StoredResult(Struct, frozen=True, kw_only=True):
    """A run's stored result; `ref_id` is the event that carries it, and identifies it.

    `parent_ref_id` is the nearest stored result that led to the run.
    """

    ref_id: EventId
    run_id: RunId
    step: str
    is_error: bool
    entered_version: int
    reference: PayloadRef
    parent_ref_id: EventId | None
    created_at: datetime
