"""Ports for replay and audit: stored histories, snapshots, pages and lineage."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeGuard

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.events import Event, get_event_type
from noetl_contracts.events.step_events import CallDone, CallError, StepEnter, StepExit, StepFailed
from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, RunId, TenantId
from noetl_contracts.ledger import envelope
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import HistoryHead, Snapshot
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_storage.ports.payload_ports import Owner


class TimeBucket(Struct, frozen=True, kw_only=True):
    """A span of a run's time: how many events fell into it, and which versions they have."""

    number: int
    events: int
    first_version: int
    last_version: int
    began_at: datetime
    ended_at: datetime


def compute_thinned_span(spacing_versions: int) -> int:
    """Return the versions of which the past keeps one: a power of two, so that spans nest.

    Thinned out again and again by spans that grow, what is left stays spread.
    """
    return 1 << max(0, spacing_versions.bit_length() - 1)


class LedgerAudit(Protocol):
    """Reads histories without giving them a meaning."""

    async def read_stored_events(
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
    ) -> list[HistoryHead]:
        """Return where the histories of a tenant end, by execution id, after one of them."""

    async def find_version_at(self, execution_id: ExecutionId, at: datetime) -> int:
        """Return the latest version whose event time is not after an instant; 0 for none."""

    async def find_version_of(self, execution_id: ExecutionId, event_id: EventId) -> int | None:
        """Return the version of an event, or None when the history has no such event."""

    async def list_buckets(self, execution_id: ExecutionId, *, buckets: int) -> list[TimeBucket]:
        """Cut the time of a run into equal spans and return those with events, in order."""


class HistoriesReader(Protocol):
    """Reads the histories of many executions at once."""

    async def read_histories(
        self,
        execution_ids: Sequence[ExecutionId],
        *,
        after: tuple[ExecutionId, int],
        events_max: int,
    ) -> list[tuple[ExecutionId, int, StoredEvent]]:
        """Return at most `events_max` events of many histories as they are kept, behind `after`.

        Each comes with the history and version that it stands at, which order them.
        """


class PastSnapshots(Protocol):
    """Remembered folds of earlier positions; dropping all of them changes nothing but time."""

    async def find_snapshot_before(
        self, execution_id: ExecutionId, version: int
    ) -> Snapshot | None:
        """Return the latest snapshot that is not beyond a version, or None."""

    async def keep_snapshot(self, snapshot: Snapshot, *, spacing_versions: int) -> None:
        """Keep a snapshot unless one stands so close before it; thin out those before.

        Afterwards there is at most one in each of its `compute_thinned_span`s.
        """

    async def prune_snapshots(self, *, ended_s: float, executions_max: int) -> int:
        """Forget the past of executions that ended so long ago; return how many snapshots.

        At most so many executions are looked at: ask again while there are any.
        """

    async def forget_snapshots(self, execution_id: ExecutionId) -> None:
        """Forget what is remembered of an execution's past."""


class ProjectionRebuilds(Protocol):
    """The read models, replaced as a whole while they are being read and written."""

    async def replace_rows(
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

    async def list_executions_ahead(self, *, executions_max: int) -> list[ExecutionId]:
        """Return executions whose projection is ahead of the ledger, which cannot be."""


class LineageRow(Struct, frozen=True, kw_only=True):
    """A run event as its receiver gets it; `body` is its JSON, byte for byte."""

    version: int
    ordinal: int
    event_type: str
    event_time: datetime
    run_id: str
    job: str
    body: str


class LineageBehind(Struct, frozen=True, kw_only=True):
    """An execution whose lineage is behind its history; `state` is None at its beginning."""

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    head: int
    kept_version: int
    state: bytes | None


class UndeliveredRow(Struct, frozen=True, kw_only=True):
    """A row that its receiver has not acknowledged."""

    execution_id: ExecutionId
    version: int
    ordinal: int
    body: str


class LineageHistories(Protocol):
    """Reads the histories from which lineage is derived."""

    async def read_steps(
        self, execution_id: ExecutionId, *, after_version: int, until_version: int
    ) -> list[Envelope]:
        """Return the events of a range of versions that runs and steps begin, end or result in.

        What items, frames and commands came to is left out; `until_version` is read too.
        """


class LineageRows(Protocol):
    """Run events that are kept until, and after, they were delivered."""

    async def list_lineage_behind(
        self, *, shard: int, shard_count: int, lineage_version: int, executions_max: int
    ) -> list[LineageBehind]:
        """Return executions of a shard whose lineage is behind the ledger, or of an older release.

        Executions whose first events have left the ledger are left out.
        """

    async def keep_rows(
        self,
        behind: LineageBehind,
        rows: Sequence[LineageRow],
        *,
        until: int,
        state: bytes,
        lineage_version: int,
    ) -> bool:
        """Write rows and move the position in one transaction; False when it stands elsewhere.

        Told from the beginning, rows that are no more are removed; those that say the same as
        before stay as delivered as they were.
        """

    async def list_undelivered_rows(
        self, *, shard: int, shard_count: int, rows_max: int
    ) -> list[UndeliveredRow]:
        """Return rows of a shard to deliver, in order within each execution."""

    async def settle_row(self, row: UndeliveredRow, *, refusal: str | None = None) -> None:
        """Note that a row was delivered, or why its receiver will never take it."""

    async def forget_lineage(self, execution_id: ExecutionId) -> bool:
        """Forget an execution's lineage, so that it is derived again; False when it has none."""


class BusinessObjects(Protocol):
    """Reads the rows of business objects; an object has one in each execution that changed it."""

    async def list_objects(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        object_type: str | None = None,
        execution_id: ExecutionId | None = None,
        has_deleted: bool = True,
        after: tuple[str, str] = ("", ""),
        objects_max: int,
    ) -> list[dict[str, Any]]:
        """Return the latest row of each object, by type and id, behind a type and id.

        With `execution_id` it is the row of that execution, and only its objects are listed.
        """

    async def list_object_rows(
        self,
        object_type: str,
        object_id: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        rows_max: int,
    ) -> list[dict[str, Any]]:
        """Return an object's rows, one an execution that changed it, the latest first."""

    async def list_object_changes(
        self,
        execution_id: ExecutionId,
        object_id: str,
        *,
        after_version: int,
        until_version: int,
        changes_max: int,
    ) -> list[Envelope] | None:
        """Return the events of one object in a range of versions, in order, and no others.

        None where the ledger does not have the history from its beginning.
        """


class ShownEvent(Struct, frozen=True, kw_only=True):
    """An event as people read it: today's shape in plain values, without its place in the chain.

    `event_time` is when it happened, `ingest_time` when the ledger took it; None before that.
    """

    event_id: EventId
    tenant_id: TenantId
    organization_id: OrganizationId
    execution_id: ExecutionId
    stream_id: str
    version: int
    aggregate_id: str
    aggregate_type: str
    event_type: str
    schema_name: str
    schema_version: int
    event_time: datetime
    ingest_time: datetime | None
    producer: str
    causation_id: str | None
    correlation_id: str
    idempotency_key: str | None
    payload_ref: dict[str, Any] | None
    context: dict[str, Any]
    result: Any
    error: Any
    meta: dict[str, Any]


class HistoryPage(Struct, frozen=True, kw_only=True):
    """An execution's read model in brief, where its history ends, and some of its events."""

    path: str
    status: str
    catalog_version: int | None
    parent_execution_id: str | None
    version: int
    events: list[ShownEvent]


class HistoryPages(Protocol):
    """Reads executions for people; nothing is decided by what it says."""

    async def find_page(
        self,
        execution_id: ExecutionId,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        after_version: int,
        events_max: int,
    ) -> HistoryPage | None:
        """Return a projected execution of an owner with events after a version, of one instant.

        None for any other. What has left the ledger is not among the events.
        """

    async def find_run_events(
        self, execution_id: ExecutionId, *, after_version: int, runs_max: int
    ) -> list[ShownEvent]:
        """Return what began and ended runs of steps, in order: `runs_max` that began after it.

        Among them are successes that failed attempts of tasks came before, but for those of items.

        The caller has checked whose execution it is. What has left the ledger is not among them.
        """

    async def list_check_events(
        self, execution_ids: Sequence[ExecutionId], *, step: str | None, events_max: int
    ) -> list[ShownEvent]:
        """Return the latest ends of steps with reports of checks of datasets, `events_max` of them.

        The caller has checked whose they are. What has left the ledger is not among them.
        """


class RunEventFilter:
    """Chooses from a history what `find_run_events` returns."""

    def __init__(self, *, runs_max: int) -> None:
        self._runs_max = runs_max
        self._entered: set[RunId] = set()
        self.found: list[ShownEvent] = []

    def add_history(self, history: Iterable[Envelope]) -> None:
        """Look through the next part of the history."""
        for item in history:
            event = item.event
            if isinstance(event, StepEnter) and len(self._entered) < self._runs_max:
                self._entered.add(event.run_id)
            if _is_run_event(event) and event.run_id in self._entered:
                self.found.append(build_shown_event(item))


def _is_run_event(
    event: Event,
) -> TypeGuard[StepEnter | StepFailed | StepExit | CallDone | CallError]:
    match event:
        case StepEnter() | StepFailed() | StepExit():
            return True
        case CallDone(item_index=None, tries=tries):
            return bool(tries)
        case CallError(item_index=None):
            return True
        case _:
            return False


def build_shown_event(event_envelope: Envelope) -> ShownEvent:
    """Show an envelope."""
    context, result, error = envelope.split_event_body(event_envelope.event)
    reference = (
        None
        if event_envelope.payload_ref is None
        else codec.to_builtins(event_envelope.payload_ref)
    )
    return ShownEvent(
        event_id=event_envelope.event_id,
        tenant_id=event_envelope.tenant_id,
        organization_id=event_envelope.organization_id,
        execution_id=event_envelope.execution_id,
        stream_id=event_envelope.stream_id,
        version=event_envelope.stream_version,
        aggregate_id=event_envelope.aggregate_id,
        aggregate_type=event_envelope.aggregate_type,
        event_type=get_event_type(event_envelope.event),
        schema_name=event_envelope.schema_name,
        schema_version=event_envelope.schema_version,
        event_time=event_envelope.event_time,
        ingest_time=event_envelope.ingest_time,
        producer=envelope.upcast_producer(
            event_envelope.producer, event_envelope.tenant_id, event_envelope.organization_id
        ),
        causation_id=event_envelope.causation_id,
        correlation_id=envelope.upcast_correlation(
            event_envelope.correlation_id, event_envelope.execution_id
        ),
        idempotency_key=event_envelope.idempotency_key,
        payload_ref=reference or envelope.find_payload_ref(context, result),
        context=context,
        result=result,
        error=error,
        meta=event_envelope.meta,
    )
