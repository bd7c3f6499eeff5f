"""The tables that all adapters in memory share, as one value."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from noetl_contracts.commands.state_values import StateChange
from noetl_contracts.credentials import SealedCredential
from noetl_contracts.identity.administration import AdministrationRecord
from noetl_contracts.identity.quotas import StoredBytes, TenantQuota
from noetl_contracts.identity.role_bindings import ApiKey, PersonGroups, RoleBinding, Session
from noetl_contracts.ids import CatalogId, ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import (
    CatalogEntry,
    CheckpointCommitted,
    HistoryHead,
    InboxMessage,
    NewMessage,
    OutboxRow,
    Request,
    SettledRequest,
    ShardLease,
    Snapshot,
)
from noetl_contracts.requests.dead_letters import DeadLetterAct
from noetl_contracts.requests.notifications import Cause, SentNotification
from noetl_contracts.requests.schedules import Schedule, SkippedTimes
from noetl_contracts.requests.triggers import Trigger
from noetl_contracts.requests.webhooks import Webhook
from noetl_storage.ports.errors import PlaybookOutdated, RequestKnown
from noetl_storage.ports.history_ports import LineageRow
from noetl_storage.ports.ledger_ports import Clock
from noetl_storage.ports.payload_ports import Owner


@dataclass(kw_only=True)
class StoredMessage:
    """An outbox row and the lease on it."""

    row: OutboxRow
    created_at: datetime
    lease_owner: str | None = None
    leased_until: datetime | None = None


@dataclass(kw_only=True)
class StoredRequest:
    """A request and what became of it."""

    request: Request
    sent_at: datetime
    sends: int = 1
    settled_at: datetime | None = None


@dataclass(kw_only=True)
class StoredInboxMessage:
    """A message from outside, and the wait that was told of it."""

    letter: InboxMessage
    taken_by: str | None = None


@dataclass(kw_only=True)
class StoredInstance:
    """A running process as it last said."""

    kind: str
    node_number: int
    leased_until: datetime


@dataclass(kw_only=True)
class StoredRole:
    """Who leads, and for how long."""

    owner: str
    leased_until: datetime


@dataclass(kw_only=True)
class StoredLineage:
    """How far an execution was told, and the run events with what became of each."""

    version: int = 0
    lineage_version: int = 0
    state: bytes = b""
    rows: dict[tuple[int, int], LineageRow] = field(default_factory=dict)
    settled: dict[tuple[int, int], str | None] = field(default_factory=dict)


Row = dict[str, Any]


@dataclass(kw_only=True)
class MemoryStore:
    """Every table as a plain collection; adapters over one store see each other's writes.

    No method awaits between reading and writing, so each call is as atomic as a transaction.
    """

    clock: Clock
    history_by_execution: dict[str, list[Envelope]] = field(default_factory=dict)
    head_by_execution: dict[str, HistoryHead] = field(default_factory=dict)
    owner_by_execution: dict[str, Owner] = field(default_factory=dict)
    head_moved_at: dict[str, datetime] = field(default_factory=dict)
    keys: set[tuple[str, str]] = field(default_factory=set)
    message_by_id: dict[int, StoredMessage] = field(default_factory=dict)
    outbox_ids: Iterator[int] = field(default_factory=lambda: count(1))
    request_by_id: dict[str, StoredRequest] = field(default_factory=dict)
    letter_by_id: dict[int, StoredInboxMessage] = field(default_factory=dict)
    lease_by_shard: dict[int, ShardLease] = field(default_factory=dict)
    instance_by_name: dict[str, StoredInstance] = field(default_factory=dict)
    leader_by_role: dict[str, StoredRole] = field(default_factory=dict)
    result_by_id: dict[str, Row] = field(default_factory=dict)
    row_by_key_by_surface: dict[str, dict[tuple[str, str], Row]] = field(default_factory=dict)
    position_by_execution: dict[str, int] = field(default_factory=dict)
    checkpoint_by_shard: dict[int, datetime] = field(default_factory=dict)
    epochs_by_shard: dict[tuple[int, int], list[CheckpointCommitted]] = field(default_factory=dict)
    snapshot_by_execution: dict[str, Snapshot] = field(default_factory=dict)
    past_by_execution: dict[str, dict[int, Snapshot]] = field(default_factory=dict)
    role_bindings: dict[str, RoleBinding] = field(default_factory=dict)
    api_keys: dict[str, ApiKey] = field(default_factory=dict)
    person_groups: dict[tuple[str, str], PersonGroups] = field(default_factory=dict)
    notification_rules: dict[tuple[str, str, str], Any] = field(default_factory=dict)
    notification_rule_count: int = 0
    notifications: dict[tuple[int, ExecutionId, Cause, str], SentNotification] = field(
        default_factory=dict
    )
    notification_owners: dict[tuple[int, ExecutionId, Cause, str], tuple[str, str]] = field(
        default_factory=dict
    )
    # What is told later of notifications that are held.
    notification_items: dict[tuple[int, ExecutionId, Cause, str], dict[str, Any]] = field(
        default_factory=dict
    )
    quotas: dict[str, TenantQuota] = field(default_factory=dict)
    stored_by_tenant: dict[str, StoredBytes] = field(default_factory=dict)
    administration: dict[tuple[str, str], list[AdministrationRecord]] = field(default_factory=dict)
    lineage_by_execution: dict[str, StoredLineage] = field(default_factory=dict)
    catalog: list[CatalogEntry] = field(default_factory=list)
    webhook_by_place: dict[tuple[str, str, str], Webhook] = field(default_factory=dict)
    session_by_hash: dict[str, Session] = field(default_factory=dict)
    dead_letter_acts: list[DeadLetterAct] = field(default_factory=list)
    trigger_by_place: dict[tuple[str, str, str], Trigger] = field(default_factory=dict)
    # The execution of each message that counts against its trigger's bound, and since when.
    claim_by_message_by_trigger: dict[
        tuple[str, str, str], dict[str, tuple[ExecutionId, datetime]]
    ] = field(default_factory=dict)
    state_changes: dict[tuple[str, str, str, str], list[StateChange]] = field(default_factory=dict)
    schedule_by_place: dict[tuple[str, str, str], Schedule] = field(default_factory=dict)
    skips_by_schedule: dict[str, list[SkippedTimes]] = field(default_factory=dict)
    credential_by_place: dict[tuple[str, str, str, int], SealedCredential] = field(
        default_factory=dict
    )

    def now(self) -> datetime:
        """Return the store's time, which decides about every lease."""
        return self.clock.now()

    def time_after(self, seconds: float) -> datetime:
        """Return the moment that many seconds from now."""
        return self.now() + timedelta(seconds=seconds)

    def find_request(self, request: Request) -> Request | None:
        """Return the request of this identity, or of this key in its tenant, or None."""
        for stored_request in self.request_by_id.values():
            other = stored_request.request
            if other.request_id == request.request_id:
                return other
            if request.idempotency_key is not None and (
                (other.tenant_id, other.idempotency_key)
                == (request.tenant_id, request.idempotency_key)
            ):
                return other
        return None

    def keep_settled_request(self, request: Request, *, latest: CatalogId | None) -> None:
        """Keep a request that its transaction settles.

        Raises `RequestKnown`, or `PlaybookOutdated` for a playbook with a later version.
        """
        settled_request = next(
            (catalog_entry for catalog_entry in self.catalog if catalog_entry.catalog_id == latest),
            None,
        )
        if settled_request is not None and any(
            _is_later_version(item, settled_request) for item in self.catalog
        ):
            raise PlaybookOutdated(f"catalog entry {latest} is not the latest of its path")
        if self.find_request(request) is not None:
            raise RequestKnown(
                f"request {request.request_id}, or its idempotency key, was kept before"
            )
        now = self.now()
        self.request_by_id[request.request_id] = StoredRequest(
            request=request, sent_at=now, sends=0, settled_at=now
        )

    def settle_request(self, settled_request: SettledRequest) -> None:
        """Note that a planner has taken a request in; its message need not go out any more."""
        stored_request = self.request_by_id.get(settled_request.request_id)
        if (
            stored_request is None
            or stored_request.settled_at is not None
            or not _is_same_request(stored_request.request, settled_request)
        ):
            return
        stored_request.settled_at = self.now()
        message_ids = {
            settled_request.request_id,
            f"{settled_request.request_id}:{stored_request.sends}",
        }
        self.message_by_id = {
            outbox_id: stored_message
            for outbox_id, stored_message in self.message_by_id.items()
            if stored_message.row.execution_id != stored_request.request.execution_id
            or stored_message.row.message_id not in message_ids
        }

    def enqueue_message(self, message: NewMessage, *, owner: str | None, lease_s: float) -> int:
        """Add a message to the outbox, leased to its writer when asked for."""
        outbox_id = next(self.outbox_ids)
        is_leased = lease_s > 0
        self.message_by_id[outbox_id] = StoredMessage(
            row=OutboxRow(
                outbox_id=outbox_id,
                execution_id=message.execution_id,
                subject=message.subject,
                message_id=message.message_id,
                data=message.data,
                codec=message.codec,
            ),
            created_at=self.now(),
            lease_owner=owner if is_leased else None,
            leased_until=self.time_after(lease_s) if is_leased else None,
        )
        return outbox_id


def _is_later_version(entry: CatalogEntry, catalog_entry: CatalogEntry) -> bool:
    places = [(item.tenant_id, item.organization_id, item.path) for item in (entry, catalog_entry)]
    return places[0] == places[1] and entry.version > catalog_entry.version


def _is_same_request(request: Request, settled_request: SettledRequest) -> bool:
    return (request.execution_id, request.tenant_id, request.organization_id) == (
        settled_request.execution_id,
        settled_request.tenant_id,
        settled_request.organization_id,
    )
