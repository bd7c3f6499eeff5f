"""Explains why one frame waits: only what the ledger and its tables tell, else "not known"."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct

from noetl_contracts.events import Event
from noetl_contracts.events.frame_events import FrameAbandoned
from noetl_contracts.ids import CommandId, ExecutionId
from noetl_contracts.status import CommandStatus, ExecutionStatus, FrameStatus
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.pools import pool_waits

Row = dict[str, Any]
NOT_KNOWN = "not known: neither the history nor its tables say why"
_ENDED = (FrameStatus.COMPLETED, FrameStatus.FAILED, FrameStatus.CANCELLED)


class FrameWaitKind(StrEnum):
    """What a frame waits for.

    A quota is none of them: it refuses starts, and what has begun goes on. What bounds the work of
    a tenant that runs at once is its `share` of a pool.
    """

    PAUSED = "paused"
    RETRY = "retry"
    POOL = "pool"
    SHARE = "share"
    NO_WORKER = "no worker"
    TASK = "task"
    LEASE = "lease"
    UNKNOWN = "not known"


# By whether the frame's pool has a worker.
_POOL_KINDS = {
    True: FrameWaitKind.POOL,
    False: FrameWaitKind.NO_WORKER,
    None: FrameWaitKind.UNKNOWN,
}


class FrameWait(Struct, frozen=True, kw_only=True):
    """Why a frame waits: since when, and until when where that is known."""

    kind: FrameWaitKind
    reason: str
    since: datetime | None = None
    until: datetime | None = None


async def explain_frame_wait(
    services: ApiServices, execution: Row, frame: Row, *, last_end: Event | None
) -> FrameWait | None:
    """Say why a frame waits; None for one that runs, or has ended.

    `last_end` is the event that ended the latest attempt, if any.
    """
    if frame["status"] in _ENDED or execution["ended_at"] is not None:
        return None
    if execution["status"] == ExecutionStatus.PAUSED and frame["status"] != FrameStatus.RUNNING:
        reason = f"the execution is paused: noetl resume {execution['execution_id']}"
        return FrameWait(kind=FrameWaitKind.PAUSED, reason=reason)
    if isinstance(last_end, FrameAbandoned) and last_end.retry_at is not None:
        return _explain_retry(last_end, last_end.retry_at, services.clock.now())
    return await _explain_command(services, frame)


def _explain_retry(abandoned: FrameAbandoned, retry_at: datetime, now: datetime) -> FrameWait:
    reason = f"its next try is due ({abandoned.reason})"
    if retry_at <= now:
        reason = f"its next try was due ({abandoned.reason}), and no worker was given it yet"
    return FrameWait(kind=FrameWaitKind.RETRY, reason=reason, until=retry_at)


async def _explain_command(services: ApiServices, frame: Row) -> FrameWait | None:
    """Say how the command stands that is to run a frame."""
    rows = await services.history.projections.list_commands(
        ExecutionId(frame["execution_id"]), [CommandId(frame["command_id"])]
    )
    if not rows:
        return FrameWait(kind=FrameWaitKind.UNKNOWN, reason=NOT_KNOWN)
    command = rows[0]
    match command["status"]:
        case CommandStatus.ISSUED:
            return await _explain_issued(services, command)
        case CommandStatus.PARKED:
            reason = "a task of it waits: for a message, a time or a child"
            return FrameWait(kind=FrameWaitKind.TASK, reason=reason, since=command["heard_at"])
        case CommandStatus.RUNNING:
            return _explain_held(services, frame, command)
        case _:
            return FrameWait(kind=FrameWaitKind.UNKNOWN, reason=NOT_KNOWN)


async def _explain_issued(services: ApiServices, command: Row) -> FrameWait:
    waiting = await pool_waits.explain_place(services, command["pool"], command["lane"])
    kind = _POOL_KINDS[waiting.is_served]
    if waiting.is_share and waiting.is_served:
        kind = FrameWaitKind.SHARE
    return FrameWait(kind=kind, reason=waiting.reason, since=command["heard_at"])


def _explain_held(services: ApiServices, frame: Row, command: Row) -> FrameWait | None:
    """Say who holds a frame that has not begun, or of which nothing was recorded for a lease."""
    heard_at = command["heard_at"]
    lease_end = heard_at + timedelta(seconds=services.limits.command_lease_s)
    if frame["status"] == FrameStatus.RUNNING and lease_end > services.clock.now():
        return None
    reason = (
        f"worker {command['worker_id'] or 'not known'} holds it; if that is gone, the frame is "
        "given to another one after the lease has ended"
    )
    return FrameWait(kind=FrameWaitKind.LEASE, reason=reason, since=heard_at)
