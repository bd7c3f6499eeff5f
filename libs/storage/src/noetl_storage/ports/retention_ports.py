"""Ports of retention: policies, holds, and the move of histories to the archive."""

from datetime import datetime
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_storage.ports.payload_ports import Owner


class RetentionAction(StrEnum):
    """What becomes of a history when its time in the ledger is over."""

    ARCHIVE = "archive"
    DROP = "drop"
    KEEP = "keep"


class UnitStatus(StrEnum):
    """How far a unit has come; each step is taken once, and resumed after a crash."""

    PLANNED = "planned"
    ARCHIVED = "archived"
    VERIFIED = "verified"
    DETACHED = "detached"
    DROPPED = "dropped"


class RetentionPolicy(Struct, frozen=True, kw_only=True):
    """How many days after its end a history stays, and what becomes of it then."""

    tenant_id: TenantId
    organization_id: OrganizationId
    keep_days: int
    action: RetentionAction
    set_by: str
    set_at: datetime | None = None


class RetentionHold(Struct, frozen=True, kw_only=True):
    """What may not leave the ledger: an execution, or without one all that an owner has."""

    hold_id: int
    tenant_id: TenantId
    organization_id: OrganizationId
    execution_id: ExecutionId | None
    reason: str
    held_by: str
    held_at: datetime
    released_by: str | None = None
    release_reason: str | None = None
    released_at: datetime | None = None


class VersionSpan(Struct, frozen=True, kw_only=True):
    """Versions of a history; `previous` is the checksum before them, `checksum` the last one's.

    `left_at` is when they were taken out of the ledger.
    """

    execution_id: ExecutionId
    first_version: int
    last_version: int
    previous: str
    checksum: str
    left_at: datetime | None = None

    @property
    def event_count(self) -> int:
        """Count them."""
        return self.last_version - self.first_version + 1


class ArchiveUnit(Struct, frozen=True, kw_only=True):
    """A unit as the ledger's database knows it; `manifest_sha256` since it was archived."""

    manifest_id: str
    tenant_id: TenantId
    organization_id: OrganizationId
    month: str
    action: RetentionAction
    status: UnitStatus
    partition_name: str
    histories: int
    events: int
    fold_version: int
    upcaster_digest: str
    planned_at: datetime
    manifest_sha256: str | None = None
    dropped_at: datetime | None = None


class ArchivedSpan(Struct, frozen=True, kw_only=True):
    """A span of a history and the unit that holds it."""

    span: VersionSpan
    unit: ArchiveUnit


class CompactionStep(Struct, frozen=True, kw_only=True):
    """Where a unit stands after a step, and what left the ledger in it."""

    status: UnitStatus
    histories: int
    events: int


class DueHistories(Struct, frozen=True, kw_only=True):
    """Histories of one month that may leave the ledger."""

    month: str
    histories: int
    events: int


class ArchiveIndex(Protocol):
    """Says where a history is that the ledger no longer has."""

    async def find_archived(self, execution_id: ExecutionId) -> list[ArchivedSpan]:
        """Return what has left the ledger of a history, by version; usually nothing."""


class Holds(Protocol):
    """Policies and holds, as an operator sets them."""

    async def place_hold(
        self, owner: Owner, *, execution_id: ExecutionId | None, reason: str, who: str
    ) -> int:
        """Hold an execution, or all of an owner; return the hold, or the one that is open."""

    async def release_hold(
        self, owner: Owner, *, execution_id: ExecutionId | None, reason: str, who: str
    ) -> int | None:
        """End the open hold and return it; None when there is none."""

    async def list_holds(
        self, owner: Owner, *, has_released: bool, holds_max: int
    ) -> list[RetentionHold]:
        """Return the holds of an owner, the latest first."""

    async def find_policy(self, owner: Owner) -> RetentionPolicy | None:
        """Return an owner's own policy, or None."""

    async def set_policy(
        self, owner: Owner, *, keep_days: int, action: RetentionAction, who: str
    ) -> None:
        """Set an owner's policy."""

    async def list_units(self, owner: Owner, *, units_max: int) -> list[ArchiveUnit]:
        """Return the units of an owner, the latest first."""


class Retention(Protocol):
    """Takes histories out of the ledger, step by step."""

    async def list_owners(self) -> list[Owner]:
        """Return every owner that has a history, in order."""

    async def find_policy(self, owner: Owner) -> RetentionPolicy | None:
        """Return an owner's own policy, or None."""

    async def count_due(self, owner: Owner, *, keep_s: float) -> list[DueHistories]:
        """Count what may leave now and is in no unit yet, by month."""

    async def plan_unit(
        self,
        owner: Owner,
        *,
        action: RetentionAction,
        keep_s: float,
        histories_max: int,
        events_max: int,
        fold_version: int,
        upcaster_digest: str,
        who: str,
    ) -> ArchiveUnit | None:
        """Plan a unit of what is due, all of one month; None when nothing is."""

    async def list_open_units(self, *, after: str | None, units_max: int) -> list[ArchiveUnit]:
        """Return units that are not done with, in the order of their planning."""

    async def list_spans(self, manifest_id: str) -> list[VersionSpan]:
        """Return what a unit holds, by execution."""

    async def advance_unit(
        self, manifest_id: str, *, status: UnitStatus, manifest_sha256: str | None = None
    ) -> bool:
        """Take note that a unit was archived, or verified; False when it is elsewhere."""

    async def leave_history_out(
        self, manifest_id: str, execution_id: ExecutionId, *, reason: str
    ) -> None:
        """Take a history out of a unit that is only planned, and hold it for its owner to see."""

    async def compact_unit(
        self, manifest_id: str, *, can_delete: bool, histories_max: int
    ) -> CompactionStep:
        """Take the next step out of the ledger; raises `RetentionRefused` when data disagree."""
