"""The span of a decision: the execution's trace goes on, and every message is linked."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

from noetl_chassis import names, tracing
from noetl_chassis.tracing import SpanKind
from noetl_contracts.facts import ExecutionRequested, FactBatch
from noetl_planner.shell.admitting import Work


def decision_span(work: Work, *, shard: int) -> AbstractContextManager[object]:
    """Time a decision within the trace of the first facts that belong to one of the execution."""
    first = work.batches[0]
    is_recorded = tracing.is_recorded()
    return tracing.span(
        names.SPAN_DECIDE,
        parent=next((one.traceparent for one in work.batches if _belongs(one)), None),
        kind=SpanKind.CONSUMER if work.deliveries or work.in_part else SpanKind.INTERNAL,
        links=list(_origins(work)) if is_recorded else (),
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


def _belongs(batch: FactBatch) -> bool:
    """Tell whether facts are of the execution's own trace.

    What somebody asks of an execution that goes on, such as a message to it, has a trace of its
    own; a request to run a playbook begins the execution's.
    """
    if batch.traceparent is None:
        return False
    return batch.request_id is None or any(
        isinstance(fact, ExecutionRequested) for fact in batch.facts
    )


def _origins(work: Work) -> Iterator[str | None]:
    """Yield who published each message, and whose facts it has."""
    for delivery in work.all_deliveries():
        yield delivery.traceparent
    for batch in work.batches[1:] if _belongs(work.batches[0]) else work.batches:
        yield batch.traceparent
