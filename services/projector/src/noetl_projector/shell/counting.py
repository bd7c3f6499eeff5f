"""Counts what a projector meets, for whoever scrapes and for whoever asks."""

from collections.abc import Iterable
from datetime import datetime

import structlog

from noetl_chassis import instruments, names
from noetl_contracts.envelope import EventBatch
from noetl_messaging.ports import Delivery
from noetl_projector.domain import sharding
from noetl_projector.domain.cache import Held
from noetl_projector.domain.policy import Policy
from noetl_projector.domain.tally import LastBatch, Tally

log = structlog.get_logger(__name__)


class Counting:
    """Adds to the tally and to the metrics at once."""

    def __init__(self, policy: Policy) -> None:
        self.tally = Tally()
        self._policy = policy

    def batch(self, *, messages: int, executions: int, events: int, stale: int) -> None:
        """Count a transaction."""
        self.tally.batches += 1
        self.tally.last_batch = LastBatch(
            messages=messages, executions=executions, events=events, stale=stale
        )

    def messages(self, messages: int, outcome: str) -> None:
        """Count what became of messages."""
        instruments.count(names.PROJECTOR_MESSAGES, messages, labels={names.OUTCOME: outcome})

    def duplicates(self, events: int) -> None:
        """Count events that had been projected before."""
        if events:
            instruments.count(names.PROJECTOR_DUPLICATES, events)
            self.tally.duplicates += events

    def gap(self) -> None:
        """Count a gap between messages."""
        instruments.count(names.PROJECTOR_GAPS)
        self.tally.gaps += 1

    def gap_events(self, events: int) -> None:
        """Count events that were read from the ledger."""
        instruments.count(names.EVENTS_READ_FOR_GAPS, events)
        self.tally.gap_events += events

    def written(self, moved: Iterable[Held], *, stale: int, now: datetime) -> None:
        """Count what a transaction has written, before positions follow, and what it left out."""
        if stale:
            instruments.count(names.PROJECTOR_STALE, stale)
            self.tally.stale += stale
        times = []
        for held in moved:
            events = held.state.version - held.position
            instruments.count(names.EVENTS_PROJECTED, events)
            self.tally.events += events
            self.tally.last_event_id = held.state.last_event_id
            self.tally.last_event_at = held.state.updated_at
            self.tally.moved_at = now
            if held.state.updated_at is not None:
                times.append(held.state.updated_at)
        if times:
            age_s = (now - min(times)).total_seconds()
            instruments.show(names.PROJECTOR_LAG_SECONDS, max(age_s, 0.0))

    def poisoned(self, executions: int) -> None:
        """Show how many executions are set aside."""
        instruments.show(names.PROJECTOR_POISONED, executions)
        self.tally.poisoned = executions

    def lag(self, messages: int, *, now: datetime) -> None:
        """Show how far the projection is behind the bus, and how long it has not moved."""
        instruments.show(names.PROJECTOR_LAG_EVENTS, messages)
        if self.tally.moved_at is not None:
            age_s = (now - self.tally.moved_at).total_seconds()
            instruments.show(names.PROJECTOR_CHECKPOINT_AGE, max(age_s, 0.0))

    def place(self, delivery: Delivery, batch: EventBatch) -> None:
        """Count a message in the wrong place; projecting it is safe, ignoring it is late."""
        policy = self._policy
        found = sharding.stray(
            delivery.subject,
            batch.execution_id,
            index=policy.index,
            count=policy.count,
            shard_count=policy.execution_shard_count,
        )
        if found is None:
            return
        match found.kind:
            case sharding.Kind.UNSHARDABLE:
                instruments.count(names.PROJECTOR_UNSHARDABLE)
                self.tally.unshardable += 1
            case sharding.Kind.UNOWNED:
                instruments.count(names.PROJECTOR_UNOWNED)
                self.tally.unowned += 1
            case sharding.Kind.MISPLACED:
                instruments.count(names.PROJECTOR_MISPLACED)
                self.tally.misplaced += 1
        log.warning(
            "message astray", kind=found.kind, subject=delivery.subject, reason=found.reason
        )
