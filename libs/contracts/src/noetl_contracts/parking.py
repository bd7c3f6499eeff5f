"""What a parked command waits for, how the wait ends, and how a child names its parent."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import CommandId, ExecutionId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope

CHILD_DEPTH_MAX = 16
STARTED = "started"


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


class ParentLink(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which task of which parent a child answers; `depth` is the child's own, from 1."""

    execution_id: ExecutionId
    command_id: CommandId
    key: str
    depth: int
    return_step: str | None = None


class Resume(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a command goes on: the pipeline that was kept, and how its wait ended.

    `status` is the child's, or `started` for a child that nobody waits for.
    """

    key: str
    ref: PayloadRef
    status: str
    child_execution_id: ExecutionId | None = None
    result: ResultEnvelope | None = None
    error: ErrorObject | None = None
