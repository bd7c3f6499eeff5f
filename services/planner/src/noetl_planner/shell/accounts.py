"""Counts what a planner has decided, for whoever scrapes."""

from collections.abc import Sequence

from noetl_chassis import instruments, names
from noetl_contracts import facts
from noetl_contracts.envelope import Envelope
from noetl_contracts.events import event_type
from noetl_contracts.events.command import CommandRejected, CommandStarted
from noetl_contracts.events.frame import FrameCommitRejected
from noetl_replay.state import ExecutionState


def decided(
    batches: Sequence[facts.FactBatch], envelopes: Sequence[Envelope], state: ExecutionState
) -> None:
    """Count what a committed decision took in and what it led to."""
    for batch in batches:
        for fact in batch.facts:
            instruments.count(
                names.FACTS_DECIDED, labels={names.FACT: str(fact.__struct_config__.tag)}
            )
    for envelope in envelopes:
        kind = event_type(envelope.event)
        instruments.count(names.EVENTS_APPENDED, labels={names.EVENT_TYPE: kind})
        if isinstance(envelope.event, CommandRejected | FrameCommitRejected):
            instruments.count(names.COMMIT_REJECTED, labels={names.REASON: envelope.event.reason})
        if isinstance(envelope.event, CommandStarted) and envelope.event.placement is not None:
            how_far = envelope.event.placement.distance
            instruments.count(names.PLACEMENTS, labels={names.DISTANCE: how_far})
    if state.is_terminal() and envelopes:
        status = str(state.status)
        instruments.count(names.EXECUTIONS_ENDED, labels={names.OUTCOME: status})
