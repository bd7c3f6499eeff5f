"""Ports for services that run playbooks: ledger, outbox, shards, projections and payloads."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from noetl_contracts.commands.state_values import StateChange, StateRecord
from noetl_contracts.events.frame_events import FrameEnd
from noetl_contracts.events.step_events import CallError, ItemEnd
from noetl_contracts.ids import CommandId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import (
    Append,
    AppendResult,
    CheckpointCommitted,
    FrameBins,
    HistoryHead,
    InboxMatch,
    InboxMessage,
    InboxOutcome,
    IssuedCommand,
    LeasedCommand,
    LineageLink,
    LiveCommandCount,
    OpenWait,
    OutboxRow,
    OverdueCommand,
    OwnedStateChange,
    Request,
    ShardLease,
    Snapshot,
    StoredLineageLink,
)
from noetl_contracts.payloads import PayloadRef


class Clock(Protocol):
    """The time by which a store without a clock of its own measures leases."""

    def now(self) -> datetime:
        """Return the time, aware of its zone."""


class LedgerReader(Protocol):
    """Reads histories."""

    async def find_head(self, execution_id: ExecutionId) -> HistoryHead | None:
        """Return where a history ends, or None when it has not begun."""

    async def list_heads(self, execution_ids: Sequence[ExecutionId]) -> list[HistoryHead]:
        """Return the heads of the histories that have begun, in any order.

        The reaper asks before it reports commands lost, and audits compare them with the ledger.
        """

    async def read_events(
        self, execution_id: ExecutionId, *, after_version: int = 0, events_max: int = 1000
    ) -> list[Envelope]:
        """Return at most `events_max` events after a version, in order."""

    async def list_item_results(
        self, execution_id: ExecutionId, run_id: str, *, after_index: int = -1, results_max: int
    ) -> list[ItemEnd]:
        """Return at most so many `call.done` and `call.error` events of one loop epoch.

        They come in the order of their items, from the item after `after_index` on.
        """

    async def list_failed_items(
        self, execution_id: ExecutionId, run_id: str, *, after_index: int = -1, results_max: int
    ) -> list[CallError]:
        """Return at most so many `call.error` events of one loop epoch's items, in item order."""

    async def list_frame_results(
        self,
        execution_id: ExecutionId,
        stage_id: str,
        *,
        after: tuple[int, int] = (-1, -1),
        results_max: int,
    ) -> list[FrameEnd]:
        """Return at most so many `frame.committed` and `frame.failed` events of one stage.

        They come in the order of slot and frame index, from the frame after `after` on.
        """

    async def find_by_key(self, execution_id: ExecutionId, key: str) -> Envelope | None:
        """Return the event that took effect under an idempotency key, or None when none has."""

    async def find_outcome(self, execution_id: ExecutionId, run_id: str) -> Envelope | None:
        """Return the event that ended the work of a run as a whole, or None while it lasts."""

    async def trace_runs(
        self, execution_id: ExecutionId, step: str, *, links_max: int
    ) -> list[LineageLink]:
        """Return the latest run of a step, the run whose end started it, and so on, back."""


class LedgerWriter(Protocol):
    """The only way to append."""

    async def append(self, batch: Append) -> AppendResult:
        """Write events and messages in one transaction.

        Raises `VersionConflict`, `StateMoved`, `ShardLost`, `DuplicateKey`, `RequestKnown`,
        `PlaybookOutdated` or `StorageUnavailable`; nothing is written then.
        """


class States(Protocol):
    """Values of `state` as the ledger keeps them: each change follows the revision before it.

    Executions change them by `LedgerWriter.append`.
    """

    async def find_state(
        self, path: str, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> StateRecord | None:
        """Return the present value of a state, or None before it has one."""

    async def change_state(self, change: OwnedStateChange) -> None:
        """Change a value outside an execution; raises `StateMoved`."""

    async def remove_state(
        self,
        path: str,
        name: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        revision: int,
    ) -> None:
        """Remove a state and its changes, if `revision` is its present one; raises `StateMoved`.

        The next change begins at revision 1 again.
        """

    async def list_states(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        path: str | None = None,
        after: tuple[str, str] = ("", ""),
        states_max: int,
    ) -> list[StateChange]:
        """Return the latest change of each state, by path and name, perhaps of one playbook."""

    async def list_changes(
        self,
        path: str,
        name: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        before: int | None = None,
        changes_max: int,
    ) -> list[StateChange]:
        """Return changes of a state, the latest first, perhaps those before a revision."""


class Requests(Protocol):
    """Durable asks from outside, each with its outbox row in the same transaction."""

    async def submit_request(self, request: Request) -> ExecutionId:
        """Keep a request; return its execution, or that of the earlier one with the same key."""

    async def find_request(self, request_id: str) -> Request | None:
        """Return a request that was kept, settled or not, or None."""

    async def find_keyed_request(self, key: str, *, tenant_id: TenantId) -> Request | None:
        """Return what a tenant has asked for under an idempotency key, or None."""

    async def redrive_requests(self, *, older_than_s: float, requests_max: int) -> int:
        """Send requests again that no planner has settled; return how many."""

    async def forget_requests(self, *, settled_for_s: float, requests_max: int) -> int:
        """Delete requests of the reaper that were settled so long ago; return how many.

        A request with an idempotency key stays: a repetition gets its answer.
        """

    async def keep_message(
        self, inbox_message: InboxMessage, *, open_wait: str | None, is_single: bool
    ) -> tuple[InboxOutcome, int]:
        """Keep a message from outside; return what became of it and the id of the one kept.

        `open_wait` names the wait at the address, if one is open. A single address takes one
        letter ever; another takes the next one once its letter was handed over.
        """

    async def find_message(
        self, address: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> InboxMessage | None:
        """Return the latest inbox message at an address, delivered or not, or None."""

    async def deliver_message(self, letter_id: int, *, open_wait: str, request: Request) -> bool:
        """Deliver an inbox message to a waiting command; False if it was delivered before."""

    async def list_matches(self, *, matches_max: int) -> list[InboxMatch]:
        """Return undelivered inbox messages for which a command waits."""


class OutboxBacklog(Protocol):
    """How much is on its way out."""

    async def count_backlog(self) -> tuple[int, float]:
        """Return how many rows wait and the age of the oldest in seconds."""


class OutboxDrain(OutboxBacklog, Protocol):
    """Committed messages on their way out."""

    async def claim_rows(self, *, owner: str, lease_s: float, rows_max: int) -> list[OutboxRow]:
        """Lease unleased rows and rows whose lease has ended, in order within an execution.

        Commands that were on their way already, and have begun, are removed instead.
        """

    async def settle_rows(self, outbox_ids: Sequence[int]) -> None:
        """Remove rows whose publication was acknowledged."""

    async def release_rows(self, outbox_ids: Sequence[int]) -> None:
        """Give rows back that could not be published."""


class ShardLeases(Protocol):
    """Which planner owns which shard; time is the database's."""

    async def claim_shards(
        self, *, owner: str, lease_s: float, shards_max: int, shard_count: int
    ) -> list[ShardLease]:
        """Take free and expired shards up to `shards_max` held; return all that are held."""

    async def extend_leases(self, *, owner: str, lease_s: float) -> list[ShardLease]:
        """Extend what the owner still holds and return it."""

    async def release_shards(self, *, owner: str, shards: Sequence[int]) -> None:
        """Give shards back at once."""

    async def list_owners(self) -> dict[str, int]:
        """Return every owner with a live lease and how many shards it holds."""


class Instances(Protocol):
    """Running processes: presence, roles and snowflake node numbers."""

    async def register_instance(self, *, instance: str, kind: str, lease_s: float) -> int:
        """Lease or extend a node number (0 to 1023) that no other live instance holds."""

    async def list_live_instances(self, kind: str) -> list[str]:
        """Return the live instances of a service."""

    async def claim_role(self, *, role: str, owner: str, lease_s: float) -> bool:
        """Take or extend the lease on a role; False while another owner holds it."""


class Projections(Protocol):
    """The read models; projectors alone write them."""

    async def list_positions(self, execution_ids: Sequence[ExecutionId]) -> dict[str, int]:
        """Return the version up to which each execution is projected; absent means 0."""

    async def apply_rows(
        self,
        *,
        shard: int,
        rows: Mapping[str, Sequence[Mapping[str, Any]]],
        positions: Mapping[str, tuple[int, int]],
        results: Sequence[Mapping[str, Any]] = (),
    ) -> list[str]:
        """Write rows by surface, stored results, and positions (from, to), in one transaction.

        Executions whose position is not `from` are left out; their ids are returned.
        """

    async def list_executions_behind(
        self,
        *,
        shard: int,
        shard_count: int,
        older_than_s: float,
        executions_max: int,
        since: datetime | None = None,
    ) -> list[ExecutionId]:
        """Return executions of a shard whose ledger is ahead of the projection for too long.

        With `since`, histories that were not appended to from then on are not looked at.
        """

    async def list_rows(
        self,
        surface: str,
        execution_id: ExecutionId,
        *,
        after: str | None = None,
        rows_max: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the rows of one surface for one execution after a key, in key order."""

    async def list_frames(
        self,
        execution_id: ExecutionId,
        *,
        stage_id: str | None,
        status: str | None,
        offset: int,
        frames_max: int,
    ) -> tuple[list[dict[str, Any]], int]:
        """Return a window of an execution's frames in key order, and how many there are."""

    async def bin_frames(self, execution_id: ExecutionId, *, bins_max: int) -> FrameBins:
        """Share out the frames of each stage, in key order, over at most so many bins."""

    async def trace_results(
        self, execution_id: ExecutionId, step: str, *, links_max: int
    ) -> list[StoredLineageLink]:
        """Return the latest stored result of a step, the one that led to it, and so on, back."""

    async def clear_execution(self, execution_id: ExecutionId) -> None:
        """Forget one execution's rows and position, to be projected again."""

    async def list_executions(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        status: str | None,
        path: str | None,
        before: ExecutionId | None,
        since: datetime | None = None,
        executions_max: int,
    ) -> list[dict[str, Any]]:
        """Return executions, newest first; `since` leaves out those that began before it."""

    async def list_overdue(self, *, grace_s: float, commands_max: int) -> list[OverdueCommand]:
        """Return live commands of which nothing was heard for `grace_s`, the longest silent first.

        At most `commands_max` that wait and as many that run in each place: a tenant's part of a
        lane of a pool.
        """

    async def count_live_commands(self) -> list[LiveCommandCount]:
        """Count live executions' commands that wait or run, by tenant, organization and stage."""

    async def list_commands(
        self, execution_id: ExecutionId, command_ids: Sequence[CommandId]
    ) -> list[dict[str, Any]]:
        """Return the rows of these commands of an execution that are there, in any order."""

    async def find_frame(self, execution_id: ExecutionId, frame_id: str) -> dict[str, Any] | None:
        """Return the row of one frame, or None: a late commit over HTTP says what ended it."""

    async def list_issued(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        execution_id: ExecutionId | None = None,
        stage_id: str | None = None,
        commands_max: int,
    ) -> list[IssuedCommand]:
        """Return commands that nobody has begun, the longest waiting first."""

    async def list_urgent(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        pools: Sequence[str],
        commands_max: int,
    ) -> list[IssuedCommand]:
        """Return commands of pools that nobody has begun, by lane and how long they wait."""

    async def list_leased(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        worker_id: str | None = None,
        execution_id: ExecutionId | None = None,
        commands_max: int,
    ) -> list[LeasedCommand]:
        """Return commands that workers run, the longest running first."""

    async def list_waits(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        address: str | None = None,
        mode: str | None = None,
        execution_id: ExecutionId | None = None,
        waits_max: int,
    ) -> list[OpenWait]:
        """Return commands that wait for a message, the longest waiting first."""

    async def list_stalled(
        self, *, older_than_s: float, executions_max: int
    ) -> list[dict[str, Any]]:
        """Return running executions without any event for too long, by lot: all have their turn."""

    async def list_overdue_waits(self, *, over_s: float, waits_max: int) -> list[dict[str, Any]]:
        """Return waits whose time has been over for so long, those that began first before others.

        Each row has `command_id`, `execution_id`, `tenant_id` and `organization_id`.
        """


class Snapshots(Protocol):
    """Remembered folds; dropping all of them changes nothing but time."""

    async def find_snapshot(self, execution_id: ExecutionId) -> Snapshot | None:
        """Return the latest snapshot, or None."""

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot unless a later one is there."""


class Buckets(Protocol):
    """Objects of buckets that playbooks name; `account` says where they are and who asks."""

    async def read_object(
        self, account: Mapping[str, Any], bucket: str, key: str, *, bytes_max: int
    ) -> bytes:
        """Return an object; raises `KeyError` when it is absent, `ValueError` when too large."""

    async def write_object(
        self, account: Mapping[str, Any], bucket: str, key: str, data: bytes, *, media_type: str
    ) -> None:
        """Write an object, replacing the one before."""

    async def delete_object(self, account: Mapping[str, Any], bucket: str, key: str) -> None:
        """Remove an object; removing what is not there is no error."""


class Payloads(Protocol):
    """Immutable bytes by digest, and a few immutable objects by name, per tenant.

    Names are relative (`frames/…`, `credentials/…`) and kept under the tenant's prefix; a name is
    written once and never replaced.
    """

    async def put_payload(
        self,
        data: bytes | AsyncIterator[bytes],
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        media_type: str,
        row_count: int | None = None,
        schema_digest: str | None = None,
    ) -> PayloadRef:
        """Store content; storing it twice, also at the same time, is storing it once."""

    async def read_payload(self, ref: PayloadRef) -> bytes:
        """Return content whose digest was checked; raises `PayloadMissing`, `PayloadCorrupt`."""

    def stream_payload(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        """Yield content in pieces; the digest is checked before the last one is yielded."""

    async def has_payload(self, ref: PayloadRef) -> bool:
        """Tell whether the content is stored."""

    async def delete_payload(self, ref: PayloadRef) -> None:
        """Remove content; removing what is not there is no error."""

    async def put_named(
        self, name: str, data: bytes, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Write an object unless the name is taken; return the bytes that were there before."""

    async def find_named(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Return an object by name, or None."""

    async def list_names(
        self,
        prefix: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        after: str = "",
        names_max: int | None = None,
    ) -> list[str]:
        """Return the names under a prefix and behind a name, in order, at most so many.

        `after` is a name that was stored, not a folder of them.
        """


class ShardCheckpoints(Protocol):
    """The streams of epochs, one a shard; of each the last few are kept."""

    async def list_latest_epochs(
        self, shards: Sequence[int], *, shard_count: int
    ) -> list[CheckpointCommitted]:
        """Return the latest epoch of each shard that has one, by shard."""

    async def commit_epochs(
        self,
        event_by_shard: Mapping[int, int],
        *,
        shard_count: int,
        set_aside: Sequence[ExecutionId],
        horizon_s: float,
        epochs_max: int,
    ) -> list[CheckpointCommitted]:
        """Commit the next epoch of each shard, projected up to an event at least; by shard.

        Nothing younger than `horizon_s` is vouched for: a transaction may have begun before and
        commit after.
        """
