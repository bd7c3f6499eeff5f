"""Metrics and spans of the decisions that a planner makes."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from noetl_chassis.observability import instruments, names, tracing
from noetl_chassis.observability.tracing import SpanKind
from noetl_contracts import codec
from noetl_contracts.events import Event, command_events, get_event_type
from noetl_contracts.events.command_events import (
    CommandFailed,
    CommandReissued,
    CommandRejected,
    CommandStarted,
)
from noetl_contracts.events.frame_events import FrameAbandoned, FrameCommitRejected
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import CommandLost, ExecutionRequested, FactBatch
from noetl_planner.domain import frame_facts
from noetl_planner.facts.fact_intake import ExecutionWork
from noetl_replay.state import ExecutionState

# A result is encoded once more to be measured, so that one event in sixteen is. Checksums choose
# it: by its version no run with fewer events would be measured.
_MEASURED = "0"
# Why an attempt had to be made again although its worker neither gave it back nor ended it.
_LOSSES = command_events.LOSSES | {frame_facts.GAP}


def count_decision(
    batches: Sequence[facts.FactBatch], envelopes: Sequence[Envelope], state: ExecutionState
) -> None:
    """Count what a committed decision took in and what it led to."""
    for batch in batches:
        for fact in batch.facts:
            instruments.add_to_counter(
                names.FACTS_DECIDED, labels={names.FACT: str(fact.__struct_config__.tag)}
            )
    for envelope in envelopes:
        kind = get_event_type(envelope.event)
        instruments.add_to_counter(names.EVENTS_APPENDED, labels={names.EVENT_TYPE: kind})
        if envelope.envelope_checksum.endswith(_MEASURED):
            _measure_result(envelope.event)
        _count_event(envelope.event)
    if state.is_terminal() and envelopes:
        status = str(state.status)
        instruments.add_to_counter(names.EXECUTIONS_ENDED, labels={names.OUTCOME: status})


def _measure_result(event: Event) -> None:
    result = getattr(event, "result", None)
    if result is not None:
        instruments.record_measurement(names.EVENT_RESULT_BYTES, len(codec.encode_json(result)))


def _count_event(event: Event) -> None:
    match event:
        case CommandRejected(reason=reason) | FrameCommitRejected(reason=reason):
            instruments.add_to_counter(names.COMMIT_REJECTED, labels={names.REASON: reason})
        case CommandStarted(placement=placement) if placement is not None:
            labels = {names.DISTANCE: placement.distance}
            instruments.add_to_counter(names.PLACEMENTS, labels=labels)
        case CommandReissued(previous_worker=worker, reason=reason) if (
            worker is not None and reason in _LOSSES
        ):
            instruments.add_to_counter(names.WORK_LOST, labels={names.KIND: "command"})
        case CommandFailed(error=error) if error.kind == command_events.WORKER_LOST:
            # It was lost once too often.
            instruments.add_to_counter(names.WORK_LOST, labels={names.KIND: "command"})
        case FrameAbandoned(reason=reason) if reason in _LOSSES:
            instruments.add_to_counter(names.WORK_LOST, labels={names.KIND: "frame"})
        case _:
            return


def open_decision_span(work: ExecutionWork, *, shard: int) -> AbstractContextManager[object]:
    """Time a decision within the trace of the first facts that belong to one of the execution."""
    first = work.batches[0]
    is_recorded = tracing.are_spans_wanted()
    return tracing.start_span(
        names.SPAN_DECIDE,
        parent=next(
            (batch.traceparent for batch in work.batches if _belongs_to_execution(batch)), None
        ),
        kind=SpanKind.CONSUMER if work.deliveries or work.in_part else SpanKind.INTERNAL,
        links=list(_iterate_links(work)) if is_recorded else (),
        attributes={
            names.ATTR_SYSTEM: names.SYSTEM_NATS,
            names.ATTR_OPERATION: names.OPERATION_PROCESS,
            names.ATTR_CONVERSATION_ID: first.execution_id,
            names.ATTR_PARTITION: str(shard),
            names.ATTR_EXECUTION: first.execution_id,
            names.ATTR_BATCH: len(work.batches),
        }
        if is_recorded
        else {},
    )


def _belongs_to_execution(batch: FactBatch) -> bool:
    """Tell whether facts are of the execution's own trace.

    What somebody asks of an execution that goes on, such as a message to it, has a trace of its
    own; a request to run a playbook begins the execution's, and a report of a loss goes on in it.
    """
    if batch.traceparent is None:
        return False
    return batch.request_id is None or any(
        isinstance(fact, ExecutionRequested | CommandLost) for fact in batch.facts
    )


def _iterate_links(work: ExecutionWork) -> Iterator[str | None]:
    """Yield who published each message, and whose facts it has."""
    for delivery in work.list_deliveries():
        yield delivery.traceparent
    for batch in work.batches[1:] if _belongs_to_execution(work.batches[0]) else work.batches:
        yield batch.traceparent
