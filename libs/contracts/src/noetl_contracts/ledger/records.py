"""Records that storage and services exchange: appends, messages, leases, requests, snapshots."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.commands.state_values import StateChange
from noetl_contracts.commands.waits import MessageWait
from noetl_contracts.identity.actors import Actor
from noetl_contracts.ids import (
    CatalogId,
    CommandId,
    EventId,
    ExecutionId,
    FrameId,
    OrganizationId,
    StageId,
    TenantId,
    WorkerId,
)
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.payloads import PayloadRef, ResultEnvelope


class CheckpointCommitted(
    Struct, frozen=True, kw_only=True, tag="checkpoint.committed", tag_field="event_type"
):
    """An event of a shard's own stream, in no execution's history.

    Everything that was appended to the shard's executions before `through_at`, a time of the
    ledger's clock, is projected; but for the executions that are `set_aside`.
    """

    shard: int
    shard_count: int
    epoch: int
    last_event_id: int
    through_at: datetime
    committed_at: datetime
    set_aside: list[ExecutionId] = []


# The kind of what the reaper asks for: nobody else asks for it again, so it may be forgotten.
REAPER_REQUEST = "reaper"


class HistoryHead(Struct, frozen=True, kw_only=True):
    """Where an execution's history ends; version 0 means that it has none yet."""

    execution_id: ExecutionId
    version: int
    checksum: str


class StreamAppend(Struct, frozen=True, kw_only=True):
    """Sealed events of one execution that follow `expected_version` without a gap."""

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    expected_version: int
    envelopes: list[Envelope]


class NewMessage(Struct, frozen=True, kw_only=True):
    """A message that must go out once the transaction has committed.

    `traceparent` names the span that decided on it; it is not stored.
    """

    execution_id: ExecutionId
    subject: str
    message_id: str
    data: bytes
    codec: str = "json"
    traceparent: str | None = None


class ShardFence(Struct, frozen=True, kw_only=True):
    """Proof that the writer owns a shard: the epoch under which it was claimed."""

    shard: int
    owner: str
    epoch: int


class SettledRequest(Struct, frozen=True, kw_only=True):
    """A request that a planner took in, and the execution that it was taken in for.

    One of another execution, or of nobody, stays as it is.
    """

    request_id: str
    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId


class OutboxRow(Struct, frozen=True, kw_only=True):
    """A committed message that has not been settled; rows of an execution go out in id order."""

    outbox_id: int
    execution_id: ExecutionId
    subject: str
    message_id: str
    data: bytes
    codec: str = "json"


class ShardLease(Struct, frozen=True, kw_only=True):
    """A planner's right to a shard; every claim by another owner raises `epoch`."""

    shard: int
    owner: str
    epoch: int
    leased_until: datetime


class Request(Struct, frozen=True, kw_only=True):
    """A durable ask from outside: `data` is an encoded `FactBatch`.

    A second request with the same idempotency key in one tenant answers with the first one's
    execution and writes nothing.
    """

    request_id: str
    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    kind: str
    subject: str
    data: bytes
    idempotency_key: str | None = None


class OwnedStateChange(Struct, frozen=True, kw_only=True):
    """A change of a value of `state`, and whose it is."""

    tenant_id: TenantId
    organization_id: OrganizationId
    change: StateChange


class Append(Struct, frozen=True, kw_only=True):
    """One transaction of the planner: events, messages, settled requests, under a fence.

    `begun` is a request that nobody has kept before: it is kept with what was decided on it, and
    settled by that. One that is known already refuses the append, as does a `latest` playbook that
    is not the latest of its path any more.

    `publish_lease_s` above 0 hands the new outbox rows to the writer for that long, so that it may
    publish at once what it has just committed; the rows stay until they are settled.

    `states` are changed with the events that say so, or nothing is written.
    """

    fence: ShardFence
    streams: list[StreamAppend]
    messages: list[NewMessage]
    settled_requests: list[SettledRequest] = msgspec.field(default_factory=list)
    begun: Request | None = None
    latest: CatalogId | None = None
    publish_lease_s: float = 0.0
    states: list[OwnedStateChange] = msgspec.field(default_factory=list)


class AppendResult(Struct, frozen=True, kw_only=True):
    """What the ledger says of an append: when it took the events, and its messages' outbox ids."""

    outbox_ids: list[int]
    ingest_time: datetime


class CatalogEntry(Struct, frozen=True, kw_only=True):
    """A registered version of a playbook: its source, canonical model and diagnostics."""

    catalog_id: CatalogId
    tenant_id: TenantId
    organization_id: OrganizationId
    path: str
    version: int
    digest: str
    source: str
    model: dict[str, Any]
    diagnostics: list[dict[str, Any]]
    created_at: datetime | None = None


class InboxMessage(Struct, frozen=True, kw_only=True):
    """A message from outside, kept until the command that waits at its address is told.

    `data` is an encoded `ResultEnvelope`, `digest` that of the message itself, `actor` who sent it.
    """

    tenant_id: TenantId
    organization_id: OrganizationId
    address: str
    digest: str
    data: bytes
    letter_id: int = 0
    actor: Actor | None = None


class InboxOutcome(StrEnum):
    """Outcome of taking an inbox message: stored, repeated, or refused for an earlier one."""

    KEPT = "kept"
    REPEATED = "repeated"
    REFUSED = "refused"


class OpenWait(Struct, frozen=True, kw_only=True):
    """A parked command, as the projection shows it to the API that takes messages for it."""

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    command_id: CommandId
    step: str
    wait: MessageWait
    since: datetime | None = None


class InboxMatch(Struct, frozen=True, kw_only=True):
    """An undelivered inbox message, and the command that waits for it."""

    letter: InboxMessage
    wait: OpenWait


class OverdueCommand(Struct, frozen=True, kw_only=True):
    """A live command whose lease has passed in the projection."""

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    command_id: str
    attempt: int
    status: str
    pool: str
    lane: str


# The kind of the stage of a command that has none.
STEP_KIND = "step"


class LiveCommandCount(Struct, frozen=True, kw_only=True):
    """How many commands of a tenant's live executions wait or run in stages of one kind."""

    tenant_id: TenantId
    organization_id: OrganizationId
    stage_kind: str
    status: str
    commands: int


class IssuedCommand(Struct, frozen=True, kw_only=True):
    """A command of a live execution that nobody has begun, and since when it waits."""

    execution_id: ExecutionId
    command_id: CommandId
    stage_id: StageId | None
    step: str
    pool: str
    lane: str
    since: datetime


class LeasedCommand(Struct, frozen=True, kw_only=True):
    """A command of a live execution that a worker runs, and the frame that it is at.

    `lease_s` is what the playbook says of leases, None where it says nothing.
    """

    execution_id: ExecutionId
    path: str
    command_id: CommandId
    stage_id: StageId | None
    frame_id: FrameId | None
    step: str
    attempt: int
    worker_id: WorkerId | None
    pool: str
    lane: str
    started_event_id: EventId | None
    heard_at: datetime
    lease_s: float | None


class Snapshot(Struct, frozen=True, kw_only=True):
    """A state folded up to a version; it only saves time, and may be ignored or lost.

    `event_id` is the last event that it covers, `payload_digest` the digest of the set of payloads
    that it refers to, and `encryption` their owner and the keys that seal them.
    """

    execution_id: ExecutionId
    version: int
    fold_version: int
    upcaster_digest: str
    checksum: str
    state: bytes
    event_id: EventId | None = None
    payload_digest: str | None = None
    encryption: dict[str, Any] | None = None


class LineageLink(Struct, frozen=True, kw_only=True):
    """One run of a step in the chain that led to a result; `result` is None until it has one.

    `ref_id` is the event that carries the result. `is_error` tells a failure's result apart.
    """

    step: str
    run_id: str
    entered_version: int
    ref_id: str | None = None
    is_error: bool = False
    result: ResultEnvelope | None = None
    created_at: datetime | None = None


class StoredLineageLink(Struct, frozen=True, kw_only=True):
    """One stored result in the chain that led to a result; `ref_id` is the event that carries it.

    `parent_ref_id` is the nearest stored result that led to it.
    """

    step: str
    run_id: str
    entered_version: int
    ref_id: str
    parent_ref_id: str | None
    is_error: bool
    reference: PayloadRef
    created_at: datetime


class FrameBin(Struct, frozen=True, kw_only=True):
    """Neighbours among the frames of a stage; durations are seconds of those that have ended.

    `first` and `last` are the ids of the frames at its ends.
    """

    stage_id: str
    place: int
    frames: int
    done: int
    failed: int
    cancelled: int
    running: int
    rows: int
    min_s: float | None
    p50_s: float | None
    p95_s: float | None
    max_s: float | None
    first: str
    last: str


class FrameBins(Struct, frozen=True, kw_only=True):
    """The frames of each stage in bins, and all of them in one bin for each stage."""

    bins: list[FrameBin]
    stages: list[FrameBin]
