"""Checks that a worker holds the current attempt of a command or frame."""

from http import HTTPStatus
from typing import Annotated, Any

from msgspec import Meta, Struct

from noetl_contracts import subjects
from noetl_contracts.identity.actors import ActorKind
from noetl_contracts.ids import CommandId, FrameId, WorkerId
from noetl_contracts.status import CommandStatus, FrameStatus
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, RequestScope
from noetl_replay.state import CommandState, ExecutionState

COMMAND_TERMINAL = "command_already_terminal"
FRAME_TERMINAL = "frame_already_terminal"
STALE = "stale_lease"
MISMATCH = "owner_mismatch"
NOT_HTTP = "pool_served_by_jetstream"

Identity = Annotated[str, Meta(pattern=r"^[0-9]{1,19}$")]
WorkerName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$")]
# The largest number that every reader of JSON holds.
NUMBER_MAX = 2**53
Attempt = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]


class Lease(Struct, frozen=True, kw_only=True):
    """What a claim gave: every later call about it repeats these four."""

    execution_id: Identity
    command_id: Identity
    attempt: Attempt
    worker_id: WorkerName


class Terms(Struct, frozen=True, kw_only=True):
    """How long a lease lasts unheard, and how often to say that work goes on."""

    lease_s: float
    heartbeat_s: float


def build_lease_terms(services: ApiServices) -> Terms:
    """Return the terms of every lease here: they are the deployment's."""
    return Terms(
        lease_s=services.limits.command_lease_s,
        heartbeat_s=min(services.limits.command_heartbeat_s, services.limits.command_lease_s / 3),
    )


def check_worker(scope: RequestScope, worker_id: str) -> None:
    """Check that a worker's key speaks for its own worker; raises a 403.

    The id is the key's account, or begins with it and a dot. Other callers may take any id.
    """
    principal = scope.access.principal
    if principal.kind is not ActorKind.WORKER:
        return
    if subjects.find_identity(worker_id) != principal.id:
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            code=MISMATCH,
            detail=f"worker {worker_id!r} is not the caller's to speak for",
            hint=f"use the worker_id {principal.id!r}, or one that begins with it and a dot",
        )


def find_command_conflict(
    state: ExecutionState, lease: Lease, pools: tuple[str, ...]
) -> ApiError | None:
    """Say why a worker may not speak for a command, or None."""
    command_state = state.commands.get(CommandId(lease.command_id))
    if command_state is None:
        return _build_conflict_error(
            COMMAND_TERMINAL,
            f"command {lease.command_id} has ended, or was never issued",
            hint="what has ended never changes: drop the work and claim anew",
        )
    return _find_holder_conflict(command_state, lease, pools)


def find_frame_conflict(
    state: ExecutionState, lease: Lease, frame_id: str, pools: tuple[str, ...]
) -> ApiError | None:
    """Say why a worker may not speak for a frame, or None."""
    opened = state.frames.get(FrameId(frame_id))
    command_state = state.commands.get(CommandId(lease.command_id))
    if opened is None or command_state is None:
        return _build_conflict_error(
            FRAME_TERMINAL,
            f"frame {frame_id} has ended, or was never dispatched",
            hint="what has ended never changes: drop the work and claim anew",
        )
    if command_state.frame_id != opened.frame_id:
        # Told to the planner, it would stand for what the worker says of its own frame.
        return _build_owner_error(
            f"command {command_state.command_id} does not run frame {frame_id}", command_state
        )
    if opened.command_id != lease.command_id or opened.status is FrameStatus.ABANDONED:
        return _build_stale_lease_error(f"frame {frame_id} was taken back", command_state)
    return _find_holder_conflict(command_state, lease, pools)


def _find_holder_conflict(
    command_state: CommandState, lease: Lease, pools: tuple[str, ...]
) -> ApiError | None:
    if command_state.pool not in pools:
        return build_not_http_pool_error(command_state.pool)
    if lease.attempt > command_state.attempt:
        return _build_owner_error(f"attempt {lease.attempt} was never issued", command_state)
    if command_state.attempt != lease.attempt:
        return _build_stale_lease_error(
            f"attempt {lease.attempt} of command {command_state.command_id} is over", command_state
        )
    if command_state.status is not CommandStatus.RUNNING:
        return _build_owner_error(
            f"nobody has claimed attempt {command_state.attempt}", command_state
        )
    if command_state.worker_id != WorkerId(lease.worker_id):
        return _build_owner_error(
            f"worker {command_state.worker_id} holds attempt {command_state.attempt}", command_state
        )
    return None


def build_not_http_pool_error(pool: str) -> ApiError:
    """Refuse claims of a pool whose workers get their commands from JetStream."""
    return _build_conflict_error(
        NOT_HTTP,
        f"pool {pool!r} is served by JetStream, and a pool is served in one way only",
        hint="name the pool in NOETL_PLANNER_HTTP_POOLS instead of NOETL_PLANNER_POOLS",
    )


def build_refused_report_error(code: str, detail: str, *, lease: Lease) -> ApiError:
    """Refuse a report that the planner has refused."""
    return _build_conflict_error(
        code,
        detail,
        hint="the report changed nothing: drop the work and claim anew",
        execution_id=lease.execution_id,
        command_id=lease.command_id,
    )


def _build_stale_lease_error(detail: str, command_state: CommandState) -> ApiError:
    return _build_conflict_error(
        STALE,
        f"{detail}: the lease ended and attempt {command_state.attempt} is next",
        hint="drop the work: another worker has it, or will; claim anew",
        current_attempt=command_state.attempt,
    )


def _build_owner_error(detail: str, command_state: CommandState) -> ApiError:
    return _build_conflict_error(
        MISMATCH,
        detail,
        hint="report under the worker_id that claimed it, and only after claiming",
        current_attempt=command_state.attempt,
    )


def _build_conflict_error(code: str, detail: str, *, hint: str, **extra: Any) -> ApiError:
    return ApiError(HTTPStatus.CONFLICT, code=code, detail=detail, hint=hint, extra=extra)
