"""Decides which silent commands are lost: projections and queues in, facts out."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command
from noetl_contracts.events.command_events import LEASE_EXPIRED, WORKER_LOST
from noetl_contracts.ids import CommandId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.ledger.records import REAPER_REQUEST, OverdueCommand, Request
from noetl_contracts.requests.facts import STALLED, CommandLost, Fact, FactBatch, TimerDue
from noetl_contracts.status import CommandStatus

REQUEST_KIND = REAPER_REQUEST
# A planner that was handed nothing for this long, though facts wait, is not there.
HEARD_S = 5.0

SuspectKey = tuple[str, int]


class ReaperPolicy(Struct, frozen=True, kw_only=True):
    """How patient the reaper is."""

    lease_s: float
    grace_s: float
    stalled_age_s: float
    routes: IngestRoutes


class SweepBounds(Struct, frozen=True, kw_only=True):
    """How much one turn does."""

    leader_lease_s: float
    commands_max: int
    request_age_s: float
    requests_max: int
    executions_max: int
    letters_max: int
    partition_months: int


class QueueState(Struct, frozen=True, kw_only=True):
    """How the queue of a pool, or of a shard's facts, stands."""

    pending: int
    unsettled: int
    stream_created_at: datetime
    settled_sequence: int = 0
    last_delivered_at: datetime | None = None


class StalledExecution(Struct, frozen=True, kw_only=True):
    """A running execution without any event for too long."""

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId


def compute_overdue_after_s(policy: ReaperPolicy) -> float:
    """Say after which silence the lease of a command has certainly passed."""
    return policy.lease_s + policy.grace_s


def find_stranded_after_s(
    stream_created_at: datetime | None, policy: ReaperPolicy, now: datetime
) -> float | None:
    """Say after which silence a command that nobody began went down with a wiped stream.

    None unless the stream is so young that a lease of the stream before it could still last.
    """
    if stream_created_at is None:
        return None
    age_s = (now - stream_created_at).total_seconds()
    return age_s + policy.grace_s if age_s < policy.lease_s else None


def select_not_begun(commands: Iterable[OverdueCommand]) -> list[OverdueCommand]:
    """Keep the commands that no worker has reported on."""
    return [command for command in commands if command.status == CommandStatus.ISSUED]


def is_planner_heard(facts: QueueState | None, now: datetime) -> bool:
    """Tell whether a shard's planner keeps up: else signs of life may wait unread in its queue."""
    if facts is None:
        return False
    if facts.pending == 0:
        return True
    last = facts.last_delivered_at
    return last is not None and (now - last).total_seconds() < HEARD_S


def is_suspect_command(
    command: OverdueCommand,
    *,
    facts: QueueState | None,
    commands: QueueState | None,
    mark: int,
    policy: ReaperPolicy,
    now: datetime,
) -> bool:
    """Tell whether a command whose lease has passed may be lost.

    A command that nobody has begun may simply wait behind others, or for a pool without workers:
    it counts as lost only when nothing of its queue waits and nothing was handed over for as long
    as a lease lasts, for a worker that received it has reported it by then; or when all is settled
    up to its `mark`, the latest message of the stream when it was first seen to be late, for a
    report comes before its message is settled; or when the stream is so young that the command must
    have been in the one that was there before.
    """
    if not is_planner_heard(facts, now):
        return False
    if command.status == CommandStatus.RUNNING:
        return True
    if commands is None:
        return False
    overdue_after = timedelta(seconds=compute_overdue_after_s(policy))
    return (
        commands.settled_sequence >= mark
        or _is_queue_at_rest(commands, now - overdue_after)
        or now - commands.stream_created_at < overdue_after
    )


def _is_queue_at_rest(queue: QueueState, since: datetime) -> bool:
    if queue.pending:
        return False
    last = queue.last_delivered_at
    return queue.unsettled == 0 or (last is not None and last < since)


def build_suspect_key(command: OverdueCommand) -> SuspectKey:
    """Name one attempt of a command."""
    return command.command_id, command.attempt


def confirm_lost_commands(
    commands: Iterable[OverdueCommand],
    *,
    suspected_at: Mapping[SuspectKey, int],
    position_by_execution: Mapping[str, int],
) -> list[OverdueCommand]:
    """Keep the suspects of the turn before whose projection has caught up with that turn's ledger.

    A projection that lags shows leases that were extended long since; it must not cost anyone
    their work.
    """
    return [
        command
        for command in commands
        if build_suspect_key(command) in suspected_at
        and position_by_execution.get(command.execution_id, 0)
        >= suspected_at[build_suspect_key(command)]
    ]


def build_lost_request(
    command: OverdueCommand, policy: ReaperPolicy, *, traceparent: str | None = None
) -> Request:
    """Say that an attempt's lease ended; saying it twice is saying it once.

    `traceparent` names the span of the report.
    """
    return _build_loss(command, LEASE_EXPIRED, policy, traceparent)


def build_worker_lost_request(
    command: Command, policy: ReaperPolicy, *, traceparent: str | None = None
) -> Request:
    """Say that the worker of an attempt is gone; also an ended lease has the same request."""
    return _build_loss(command, WORKER_LOST, policy, traceparent)


def _build_loss(
    command: OverdueCommand | Command,
    reason: str,
    policy: ReaperPolicy,
    traceparent: str | None,
) -> Request:
    fact = CommandLost(
        command_id=CommandId(command.command_id), attempt=command.attempt, reason=reason
    )
    return _build_request(
        f"lost/{command.command_id}/{command.attempt}",
        fact,
        execution_id=command.execution_id,
        tenant_id=command.tenant_id,
        organization_id=command.organization_id,
        routes=policy.routes,
        traceparent=traceparent,
    )


def build_wake_request(stalled: StalledExecution, policy: ReaperPolicy, now: datetime) -> Request:
    """Wake an execution, at most once per period."""
    return _build_timer_request(
        f"nudge/{stalled.execution_id}", TimerDue(reason=STALLED), stalled, policy, now
    )


def build_wait_over_request(
    execution: StalledExecution, command_id: str, policy: ReaperPolicy, now: datetime
) -> Request:
    """Say that the time of a command's wait is over, at most once per period."""
    return _build_timer_request(f"wait-over/{command_id}", TimerDue(), execution, policy, now)


def _build_timer_request(
    subject: str, fact: TimerDue, execution: StalledExecution, policy: ReaperPolicy, now: datetime
) -> Request:
    period = int(now.timestamp() // policy.stalled_age_s)
    return _build_request(
        f"{subject}/{period}",
        fact,
        execution_id=execution.execution_id,
        tenant_id=execution.tenant_id,
        organization_id=execution.organization_id,
        routes=policy.routes,
    )


def read_stalled_rows(rows: Sequence[Mapping[str, object]]) -> list[StalledExecution]:
    """Read projected rows."""
    return [
        StalledExecution(
            execution_id=ExecutionId(str(row["execution_id"])),
            tenant_id=TenantId(str(row["tenant_id"])),
            organization_id=OrganizationId(str(row["organization_id"])),
        )
        for row in rows
    ]


def _build_request(
    key: str,
    fact: Fact,
    *,
    execution_id: ExecutionId,
    tenant_id: TenantId,
    organization_id: OrganizationId,
    routes: IngestRoutes,
    traceparent: str | None = None,
) -> Request:
    batch = FactBatch(
        key=key,
        execution_id=execution_id,
        tenant_id=tenant_id,
        organization_id=organization_id,
        producer=REQUEST_KIND,
        facts=[fact],
        request_id=key,
        traceparent=traceparent,
    )
    return Request(
        request_id=key,
        execution_id=execution_id,
        tenant_id=tenant_id,
        organization_id=organization_id,
        kind=REQUEST_KIND,
        subject=routes.build_subject(execution_id, tenant_id, organization_id),
        data=codec.encode_json(batch),
        idempotency_key=key,
    )
