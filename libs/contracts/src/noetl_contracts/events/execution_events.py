"""What happens to an execution as a whole."""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.commands.loop_collections import TakenItems
from noetl_contracts.commands.state_values import IncrementRange
from noetl_contracts.commands.waits import ParentLink
from noetl_contracts.commands.worker_pools import Priority
from noetl_contracts.errors import ErrorObject
from noetl_contracts.execution_files import FileSource
from noetl_contracts.ids import CatalogId, ExecutionId, RunId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.status import RunStatus

CUSTOM = "custom"
ATTRIBUTES_BYTES_MAX = 2048


class RerunSource(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The execution that is repeated from a step on, and up to which version it was read.

    `files` name the executions whose files it takes over, the oldest first. With `items` the step
    is a loop, and runs only what had not completed there.
    """

    execution_id: ExecutionId
    version: int
    step: str
    files: list[FileSource] = msgspec.field(default_factory=list)
    items: TakenItems | None = None


class InheritedStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is remembered of a step that an earlier execution has run."""

    step: str
    run_id: RunId
    status: RunStatus
    result: ResultEnvelope | None = None
    error: ErrorObject | None = None


class PlaybookInitialized(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="playbook.initialized",
):
    """The one root event: which playbook runs, with which inputs, and until when at most.

    After `due_at` it is late, and goes on.
    With a `source` the execution begins at that execution's step, and `came_from` led there.
    `pool` and `priority` are what the request said of every step that names none itself. With a
    `backfill` steps that read increments read this range, and move no state.
    """

    path: str
    catalog_id: CatalogId
    catalog_version: int
    playbook_digest: str
    entry_step: str
    workload: dict[str, Any]
    workload_ref: PayloadRef | None = None
    ctx: dict[str, Any] = msgspec.field(default_factory=dict)
    parent_execution_id: ExecutionId | None = None
    requested_by: str | None = None
    expires_at: datetime | None = None
    due_at: datetime | None = None
    source: RerunSource | None = None
    came_from: str | None = None
    parent: ParentLink | None = None
    pool: str | None = None
    priority: Priority | None = None
    backfill: IncrementRange | None = None


class StateInherited(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="execution.inherited",
):
    """A part of what the source had before the step: several follow when one would be large."""

    part: int
    ctx: dict[str, Any] = msgspec.field(default_factory=dict)
    steps: list[InheritedStep] = msgspec.field(default_factory=list)


class PlaybookCompleted(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="playbook.completed",
):
    """No step is live and no failure was left unhandled."""

    step: str | None = None
    result: ResultEnvelope | None = None


class PlaybookFailed(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="playbook.failed",
):
    """A failure was left unhandled; `error` is the first one."""

    error: ErrorObject
    step: str | None = None


class CancelRequested(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="execution.cancelling",
):
    """From here on nothing is dispatched; `cascade` extends it to the children."""

    reason: str | None = None
    requested_by: str | None = None
    cascade: bool = True


class ExecutionCancelled(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="execution.cancelled",
):
    """In-flight work has stopped, or the grace period is over."""

    reason: str | None = None


ExecutionEnd = PlaybookCompleted | PlaybookFailed | ExecutionCancelled


class ExecutionPaused(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="execution.paused",
):
    """From here on nothing is dispatched; what runs may finish, and bounds in time go on."""

    request_id: str
    reason: str | None = None
    requested_by: str | None = None


class ExecutionResumed(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="execution.resumed",
):
    """The execution goes on exactly where it was held."""

    request_id: str
    requested_by: str | None = None


class DeadlinePassed(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="deadline.passed",
):
    """The execution, or the activation `run_id` of a step, is late since `due_at`; it goes on."""

    due_at: datetime
    step: str | None = None
    run_id: RunId | None = None


class CustomEvent(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event_type", tag=CUSTOM
):
    """A step's end, announced under a name of the playbook's own: its type is `custom.<name>`."""

    name: str
    step: str
    run_id: RunId
    status: str


class CtxPatched(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event_type", tag="ctx.patched"
):
    """Top-level `ctx` keys were written from outside, and those `removed` are gone."""

    patch: dict[str, Any]
    requested_by: str | None = None
    removed: list[str] = msgspec.field(default_factory=list)
    request_id: str | None = None


class FilesChanged(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="files.changed",
):
    """Tasks have changed files; `entries` is how long the journal of the files is.

    Tasks that begin later read the journal at least so far.
    """

    entries: int


class BusinessObjectChanged(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="business_object.changed",
):
    """A step's end brought about, changed or removed an object of the playbook's domain.

    `object_id` begins with the type; `attributes` replace those of the same names. `result_ref` is
    the step's result, which it comes from.
    """

    object_type: str
    object_id: str
    step: str
    run_id: RunId
    status: str | None = None
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    result_ref: PayloadRef | None = None
    is_deleted: bool = False
