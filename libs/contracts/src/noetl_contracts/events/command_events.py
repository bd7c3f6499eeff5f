"""What happens to a command: one unit of work for one worker."""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.commands.placement import Placement
from noetl_contracts.commands.task_metrics import MetricsByTask
from noetl_contracts.commands.waits import ChildWait, Wait
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import CommandId, ExecutionId, RunId, StageId, WorkerId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope

# Reasons why an attempt ended that nobody is to blame for: its worker left, or never came for it.
RELEASED = "released"
NOT_TAKEN = "not_taken"
# Why the command of an item begins with a later attempt: a batch had the item in the earlier ones,
# which were lost or not.
IN_BATCH = "ran_in_batch"
LOST_IN_BATCH = "lost_in_batch"
REASONS_WITHOUT_LOSS = frozenset({RELEASED, NOT_TAKEN, IN_BATCH})
# Why an attempt was lost: its message came again, its worker noticed that the lease had gone, the
# lease passed unheard, or the worker's connection ended.
REDELIVERED = "redelivered"
LEASE_LOST = "lease_lost"
LEASE_EXPIRED = "lease_expired"
WORKER_LOST = "worker_lost"
LOSSES = frozenset({REDELIVERED, LEASE_LOST, LEASE_EXPIRED, WORKER_LOST})
# Of these nothing ran again.
UNCOUNTED = frozenset({NOT_TAKEN, IN_BATCH, LOST_IN_BATCH})


class CommandIssued(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="command.issued",
):
    """Work was dispatched for the first time; `unit` names it within its run.

    `source_locality` is what the places share where its inputs were made; until `offered_until`
    the `target` alone may take it. `batch` are the items of a loop that it runs one after another;
    `item_index` is then the first.
    """

    command_id: CommandId
    run_id: RunId
    step: str
    unit: str
    pool: str
    lane: str
    attempts_max: int
    stage_id: StageId | None = None
    slot: int | None = None
    item_index: int | None = None
    source_locality: dict[str, str] = msgspec.field(default_factory=dict)
    target: WorkerId | None = None
    offered_until: datetime | None = None
    batch: list[int] = msgspec.field(default_factory=list)


class CommandReissued(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="command.reissued",
):
    """The previous attempt was lost or not taken; `attempt` fences every later fact of it."""

    command_id: CommandId
    run_id: RunId
    step: str
    attempt: int
    reason: str
    previous_worker: WorkerId | None = None
    stage_id: StageId | None = None


class CommandStarted(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="command.started",
):
    """A worker took the command."""

    command_id: CommandId
    run_id: RunId
    step: str
    attempt: int
    worker_id: WorkerId
    worker_locator: str | None = None
    locality: dict[str, Any] = msgspec.field(default_factory=dict)
    stage_id: StageId | None = None
    placement: Placement | None = None


class CommandHeartbeat(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="command.heartbeat",
):
    """The worker still holds the command."""

    command_id: CommandId
    run_id: RunId
    step: str
    attempt: int
    worker_id: WorkerId
    stage_id: StageId | None = None


class CommandCompleted(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="command.completed",
):
    """The command ended well; for a slot `is_dry` says that its last claim found nothing.

    `tasks` says what each task did; of a frame's command its frame says so.
    """

    command_id: CommandId
    run_id: RunId
    step: str
    attempt: int
    worker_id: WorkerId
    stage_id: StageId | None = None
    slot: int | None = None
    is_dry: bool = False
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)
    tasks: MetricsByTask = msgspec.field(default_factory=dict)


class CommandFailed(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="command.failed",
):
    """The command ended badly and will not be dispatched again."""

    command_id: CommandId
    run_id: RunId
    step: str
    attempt: int
    error: ErrorObject
    worker_id: WorkerId | None = None
    stage_id: StageId | None = None
    slot: int | None = None
    tasks: MetricsByTask = msgspec.field(default_factory=dict)


class CommandCancelled(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="command.cancelled",
):
    """The command was called off before it ended; `error` is of kind `cancelled`.

    `item_index` is set where the command's loop goes on.
    """

    command_id: CommandId
    run_id: RunId
    step: str
    attempt: int
    reason: str
    stage_id: StageId | None = None
    error: ErrorObject | None = None
    item_index: int | None = None


class CommandRejected(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="command.rejected",
):
    """A fact bore an old fence or came after the end; it changed nothing."""

    command_id: CommandId
    attempt: int
    current_attempt: int
    fact: str
    reason: str
    worker_id: WorkerId | None = None


class CommandParked(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="command.parked",
):
    """The worker kept the pipeline at `resume_ref` and let the command go; nobody holds it."""

    command_id: CommandId
    run_id: RunId
    step: str
    attempt: int
    worker_id: WorkerId
    resume_ref: PayloadRef
    wait: Wait


class CommandResumed(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="command.resumed",
):
    """The wait ended: the command goes on under `attempt`, which fences every later fact."""

    command_id: CommandId
    run_id: RunId
    step: str
    attempt: int
    key: str
    status: str
    child_execution_id: ExecutionId | None = None
    result: ResultEnvelope | None = None
    error: ErrorObject | None = None


class ChildStarted(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="child.started",
):
    """A child execution was asked for, once for the task's attempt that `wait.key` names."""

    child_execution_id: ExecutionId
    command_id: CommandId
    run_id: RunId
    step: str
    wait: ChildWait


class ChildEnded(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="child.ended",
):
    """A child execution reported its end; `status` is the child's."""

    child_execution_id: ExecutionId
    command_id: CommandId
    step: str
    key: str
    status: str
    error: ErrorObject | None = None
