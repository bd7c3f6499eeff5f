"""What replay and audit ask of storage: histories as they are kept, and where cuts fall in them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct

from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import Head, Snapshot
from noetl_contracts.stored import StoredEvent
from noetl_storage.payload_ports import Owner


class Bucket(Struct, frozen=True, kw_only=True):
    """A span of a run's time: how many events fell into it, and which versions they have."""

    number: int
    events: int
    first_version: int
    last_version: int
    began_at: datetime
    ended_at: datetime


def thinned_span(spacing_versions: int) -> int:
    """Return the versions of which the past keeps one: a power of two, so that spans nest.

    Thinned out again and again by spans that grow, what is left stays spread.
    """
    return 1 << max(0, spacing_versions.bit_length() - 1)


class LedgerAudit(Protocol):
    """Reads histories without giving them a meaning."""

    async def read_stored(
        self, execution_id: ExecutionId, *, after_version: int = 0, events_max: int = 1000
    ) -> list[StoredEvent]:
        """Return at most `events_max` events after a version as they are kept, in order."""

    async def find_owner(self, execution_id: ExecutionId) -> Owner | None:
        """Return whose a history is, or None before it began; an owner outlives its events."""

    async def list_histories(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        after: ExecutionId | None = None,
        heads_max: int,
    ) -> list[Head]:
        """Return where the histories of a tenant end, by execution id, after one of them."""

    async def find_version_at(self, execution_id: ExecutionId, at: datetime) -> int:
        """Return the latest version whose event time is not after an instant; 0 for none."""

    async def find_version_of(self, execution_id: ExecutionId, event_id: EventId) -> int | None:
        """Return the version of an event, or None when the history has no such event."""

    async def list_buckets(self, execution_id: ExecutionId, *, buckets: int) -> list[Bucket]:
        """Cut the time of a run into equal spans and return those with events, in order."""


class ManyHistories(Protocol):
    """Reads the histories of many executions at once."""

    async def read_many(
        self,
        execution_ids: Sequence[ExecutionId],
        *,
        after: tuple[ExecutionId, int],
        events_max: int,
    ) -> list[tuple[ExecutionId, int, StoredEvent]]:
        """Return at most `events_max` events of many histories as they are kept, behind `after`.

        Each comes with the history and version that it stands at, which order them.
        """


class Past(Protocol):
    """Remembered folds of earlier positions; dropping all of them changes nothing but time."""

    async def find_before(self, execution_id: ExecutionId, version: int) -> Snapshot | None:
        """Return the latest snapshot that is not beyond a version, or None."""

    async def keep(self, snapshot: Snapshot, *, spacing_versions: int) -> None:
        """Keep a snapshot unless one stands so close before it; thin out those before.

        Afterwards there is at most one in each of its `thinned_span`s.
        """

    async def prune(self, *, ended_s: float, executions_max: int) -> int:
        """Forget the past of executions that ended so long ago; return how many snapshots.

        At most so many executions are looked at: ask again while there are any.
        """

    async def forget(self, execution_id: ExecutionId) -> None:
        """Forget what is remembered of an execution's past."""


class Rebuilds(Protocol):
    """The read models, replaced as a whole while they are being read and written."""

    async def replace(
        self,
        *,
        shard: int,
        execution_id: ExecutionId,
        rows: Mapping[str, Sequence[Mapping[str, Any]]],
        version: int,
        results: Sequence[Mapping[str, Any]] = (),
    ) -> int:
        """Replace all of one execution's rows, stored results and position, in one transaction.

        Returns the position afterwards: `version`, or a later one that was found and left alone.
        """

    async def list_results(self, execution_id: ExecutionId) -> list[dict[str, Any]]:
        """Return an execution's stored results as they were written, in the order of their ids."""

    async def list_ahead(self, *, executions_max: int) -> list[ExecutionId]:
        """Return executions whose projection is ahead of the ledger, which cannot be."""
