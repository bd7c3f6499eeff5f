"""What happens while a command waits for something else: parked, resumed, children."""

from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import CommandId, ExecutionId, RunId, WorkerId
from noetl_contracts.parking import ChildWait, Wait
from noetl_contracts.payloads import PayloadRef, ResultEnvelope


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
