"""What a parked command waits for, how the wait ends, and how a child names its parent."""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import CommandId, ExecutionId, StageId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope

CHILD_DEPTH_MAX = 16
# About 300 years: what is further away has no date.
TIMEOUT_S_MAX = 10**10
# How a wait may end, besides with the status of a child.
STARTED = "started"
DELIVERED = "delivered"
TIMED_OUT = "timeout"
STOPPED = "stopped"
ELAPSED = "elapsed"
# The longest time that a task may let pass: a year, leap years too.
WAIT_S_MAX = 366 * 86_400


class ChildWait(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="wait", tag="child"
):
    """A child execution that a task wants run.

    `key` names the task's attempt within its command; the child's inputs are inline, or a payload.
    """

    key: str
    task: str
    path: str
    timeout_s: float
    version: int | None = None
    workload: dict[str, Any] = msgspec.field(default_factory=dict)
    workload_ref: PayloadRef | None = None
    return_step: str | None = None
    is_awaited: bool = True


class MessageWait(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="wait", tag="message"
):
    """A message from outside that a task waits for.

    `address` is where it must be sent: `callback/` and the digest of a token, `signal/` and the
    correlation key, or `approval/` and an id. `cancels` says that a task must run if nothing comes.
    With `four_eyes` the one who started the execution may not decide.
    """

    key: str
    task: str
    mode: str
    address: str
    timeout_s: float
    correlation_key: str | None = None
    is_timeout_ok: bool = False
    cancels: bool = False
    schema: dict[str, str] = msgspec.field(default_factory=dict)
    title: str | None = None
    description: str | None = None
    assignees: list[str] = msgspec.field(default_factory=list)
    options: list[str] = msgspec.field(default_factory=list)
    four_eyes: bool = False


class TimeWait(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="wait", tag="time"):
    """Time that passes before a task goes on; `reason` is what the pipeline does then.

    The planner counts `timeout_s` from when it hears of the wait. `until` is the same by the clock
    of the worker: rows of a frame that wait together begin to at different times.
    """

    key: str
    task: str
    reason: str
    until: datetime
    timeout_s: float


Wait = ChildWait | MessageWait | TimeWait


class ParentLink(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which task of which parent a child answers; `depth` is the child's own, from 1.

    `stage_id` is the stage of the parent whose frame called, if one did.
    """

    execution_id: ExecutionId
    command_id: CommandId
    key: str
    depth: int
    return_step: str | None = None
    stage_id: StageId | None = None


class Resume(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a command goes on: the pipeline that was kept, and how its wait ended.

    `status` is the child's; or `started` for a child that nobody waits for; or for a message
    `delivered`, `timeout`, or `stopped` when only what was submitted is to be called off; or
    `elapsed` when nothing but time was waited for.
    """

    key: str
    ref: PayloadRef
    status: str
    child_execution_id: ExecutionId | None = None
    result: ResultEnvelope | None = None
    error: ErrorObject | None = None
