"""What happens to one activation of a step."""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.commands.command_work import Chunk
from noetl_contracts.commands.task_metrics import MetricsByTask
from noetl_contracts.errors import ErrorObject, FailedTry
from noetl_contracts.ids import CommandId, RunId, WorkerId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.status import RunStatus


class StepEnter(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event_type", tag="step.enter"
):
    """A token set was taken and the step's activation began; it may last until `expires_at`.

    After `due_at` it is late, and goes on.
    `stream_of` is the run whose chunks this activation handles, for as long as that streams.
    """

    step: str
    run_id: RunId
    activation: int
    came_from: str | None = None
    expires_at: datetime | None = None
    due_at: datetime | None = None
    stream_of: RunId | None = None


class StepExit(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event_type", tag="step.exit"
):
    """The activation is over: tokens go to `targets`, `patch` is what `set` wrote to `ctx`.

    `error` is the failure that no arc handled; it makes the execution fail. `failure` is what the
    step itself failed with although its call had succeeded. `tasks` adds up what its commands say
    that they did.
    """

    step: str
    run_id: RunId
    status: RunStatus
    targets: list[str] = msgspec.field(default_factory=list)
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
    is_handled: bool = True
    error: ErrorObject | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    failure: ErrorObject | None = None
    tasks: MetricsByTask = msgspec.field(default_factory=dict)


class StepFailed(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event_type", tag="step.failed"
):
    """An activation failed and no call of its own says so: not admitted, refused or too late.

    It replaces what an earlier activation left as the step's result.
    """

    step: str
    run_id: RunId
    error: ErrorObject


class InBatch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The command that ran an item in a batch, who ran it, and what the item's tasks did.

    `elapsed_ms` is how long the item took, waits between tries included.
    """

    command_id: CommandId
    attempt: int
    worker_id: WorkerId | None = None
    tasks: MetricsByTask = msgspec.field(default_factory=dict)
    elapsed_ms: int | None = None


class CallDone(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event_type", tag="call.done"
):
    """A step or loop item succeeded; `item_index` is set for items.

    `tries` are attempts of its tasks that failed and were followed by others. `in_batch` is set for
    an item that ran in a batch of items: `command_id` is its own, which no other event has.
    """

    step: str
    run_id: RunId
    command_id: CommandId
    result: ResultEnvelope
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
    item_index: int | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    tries: list[FailedTry] = msgspec.field(default_factory=list)
    in_batch: InBatch | None = None


class CallError(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event_type", tag="call.error"
):
    """A step or loop item failed after its own policies."""

    step: str
    run_id: RunId
    command_id: CommandId
    error: ErrorObject
    result: ResultEnvelope | None = None
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
    item_index: int | None = None
    in_batch: InBatch | None = None


ItemEnd = CallDone | CallError


class CallPartial(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event_type",
    tag="call.partial",
):
    """A task emitted a chunk, which activates each of `targets` once.

    `patch` is what the `set` of the chosen arcs wrote to `ctx`.
    """

    step: str
    run_id: RunId
    command_id: CommandId
    attempt: int
    chunk: Chunk
    targets: list[str] = msgspec.field(default_factory=list)
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
