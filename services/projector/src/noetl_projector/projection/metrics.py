"""Metrics of a projector."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from noetl_chassis.observability import instruments, names
from noetl_contracts.ids import EventId
from noetl_contracts.ledger.envelope import EventBatch
from noetl_messaging.streams.ports import Delivery
from noetl_projector.domain import shard_ownership
from noetl_projector.domain.policy import ProjectorPolicy
from noetl_projector.domain.state_cache import ProjectedState


class LastBatch(Struct, frozen=True, kw_only=True):
    """The shape of the latest transaction."""

    messages: int
    executions: int
    events: int
    stale: int


class ProjectionTally(Struct, kw_only=True):
    """Counts since the process began; only its owner adds to them.

    `duplicates` had been projected before, `stale` writes found the position moved by another
    projector, `gaps` were closed from the ledger with `gap_events`, `misplaced` messages stood
    under another shard's subject, `unowned` ones belong to another projector's shards, and the
    subjects of `unshardable` ones name no shard.
    """

    batches: int = 0
    events: int = 0
    duplicates: int = 0
    stale: int = 0
    gaps: int = 0
    gap_events: int = 0
    misplaced: int = 0
    unowned: int = 0
    unshardable: int = 0
    undecodable: int = 0
    poisoned: int = 0
    snapshots: int = 0
    last_batch: LastBatch | None = None
    last_event_id: EventId | None = None
    last_event_at: datetime | None = None
    moved_at: datetime | None = None

    def view_counts(self) -> dict[str, Any]:
        """Return everything as plain values."""
        counts_by_name: dict[str, Any] = msgspec.to_builtins(self)
        return counts_by_name


log = structlog.get_logger(__name__)


class ProjectionMetrics:
    """Adds to the tally and to the metrics at once."""

    def __init__(self, policy: ProjectorPolicy) -> None:
        self.tally = ProjectionTally()
        self._policy = policy

    def count_batch(self, *, messages: int, executions: int, events: int, stale: int) -> None:
        """Count a transaction."""
        self.tally.batches += 1
        self.tally.last_batch = LastBatch(
            messages=messages, executions=executions, events=events, stale=stale
        )

    def count_messages(self, messages: int, outcome: str) -> None:
        """Count what became of messages."""
        instruments.add_to_counter(
            names.PROJECTOR_MESSAGES, messages, labels={names.OUTCOME: outcome}
        )

    def count_duplicates(self, events: int) -> None:
        """Count events that had been projected before."""
        if events:
            instruments.add_to_counter(names.PROJECTOR_DUPLICATES, events)
            self.tally.duplicates += events

    def count_gap(self) -> None:
        """Count a gap between messages."""
        instruments.add_to_counter(names.PROJECTOR_GAPS)
        self.tally.gaps += 1

    def count_gap_events(self, events: int) -> None:
        """Count events that were read from the ledger."""
        instruments.add_to_counter(names.EVENTS_READ_FOR_GAPS, events)
        self.tally.gap_events += events

    def count_written(self, moved: Iterable[ProjectedState], *, stale: int, now: datetime) -> None:
        """Count what a transaction has written, before positions follow, and what it left out."""
        if stale:
            instruments.add_to_counter(names.PROJECTOR_STALE, stale)
            self.tally.stale += stale
        times = []
        for projected_state in moved:
            events = projected_state.state.version - projected_state.position
            instruments.add_to_counter(names.EVENTS_PROJECTED, events)
            self.tally.events += events
            self.tally.last_event_id = projected_state.state.last_event_id
            self.tally.last_event_at = projected_state.state.updated_at
            self.tally.moved_at = now
            if projected_state.state.updated_at is not None:
                times.append(projected_state.state.updated_at)
        if times:
            age_s = (now - min(times)).total_seconds()
            instruments.set_gauge(names.PROJECTOR_LAG_SECONDS, max(age_s, 0.0))

    def show_poisoned(self, executions: int) -> None:
        """Show how many executions are set aside."""
        instruments.set_gauge(names.PROJECTOR_POISONED, executions)
        self.tally.poisoned = executions

    def show_lag(self, messages: int, *, now: datetime) -> None:
        """Show how far the projection is behind the bus, and how long it has not moved."""
        instruments.set_gauge(names.PROJECTOR_LAG_EVENTS, messages)
        if self.tally.moved_at is not None:
            age_s = (now - self.tally.moved_at).total_seconds()
            instruments.set_gauge(names.PROJECTOR_CHECKPOINT_AGE, max(age_s, 0.0))

    def count_misplaced(self, delivery: Delivery, batch: EventBatch) -> None:
        """Count a message in the wrong place; projecting it is safe, ignoring it is late."""
        policy = self._policy
        misplaced = shard_ownership.find_misplaced_message(
            delivery.subject,
            batch.execution_id,
            index=policy.index,
            count=policy.count,
            shard_count=policy.execution_shard_count,
        )
        if misplaced is None:
            return
        match misplaced.kind:
            case shard_ownership.MisplacementKind.UNSHARDABLE:
                instruments.add_to_counter(names.PROJECTOR_UNSHARDABLE)
                self.tally.unshardable += 1
            case shard_ownership.MisplacementKind.UNOWNED:
                instruments.add_to_counter(names.PROJECTOR_UNOWNED)
                self.tally.unowned += 1
            case shard_ownership.MisplacementKind.MISPLACED:
                instruments.add_to_counter(names.PROJECTOR_MISPLACED)
                self.tally.misplaced += 1
        log.warning(
            "message of another shard or projector",
            kind=misplaced.kind,
            subject=delivery.subject,
            reason=misplaced.reason,
        )
