"""Errors for facts on which no decision is possible, and answers to parents of such executions."""

from collections.abc import Sequence

from noetl_contracts.errors import ErrorObject, PayloadSealBroken, ResultMalformed, get_error_code
from noetl_contracts.requests.facts import (
    CancelRequested,
    ChildEnded,
    ExecutionRequested,
    FactBatch,
)
from noetl_contracts.status import ExecutionStatus
from noetl_messaging.streams.ports import Delivery
from noetl_storage.ports.errors import PayloadCorrupt
from noetl_storage.size_limits.refusals import PayloadUnreadable

# A wish to cancel may overtake the request that it is about, but not by much.
EARLY_DELIVERIES_MAX = 10


def answer_parents(batches: Sequence[FactBatch], reason: str) -> list[FactBatch]:
    """Build the facts for parents whose child executions cannot begin."""
    return [
        FactBatch(
            key=f"{batch.key}/refused",
            execution_id=fact.parent.execution_id,
            tenant_id=batch.tenant_id,
            organization_id=batch.organization_id,
            producer=batch.producer,
            facts=[
                ChildEnded(
                    command_id=fact.parent.command_id,
                    key=fact.parent.key,
                    child_execution_id=batch.execution_id,
                    status=ExecutionStatus.FAILED,
                    error=ErrorObject(kind="not_found", code="NOT_FOUND", message=reason),
                )
            ],
        )
        for batch in batches
        for fact in batch.facts
        if isinstance(fact, ExecutionRequested) and fact.parent is not None
    ]


# What no patience makes readable.
UNREADABLE = (PayloadCorrupt, PayloadUnreadable, PayloadSealBroken, ResultMalformed)


def build_unreadable_fact_error(failure: Exception) -> ErrorObject:
    """Make the error of who needs a payload which no patience makes readable."""
    kind = "storage_quota"
    text = f"what the next step depends on cannot be read: {failure}"
    return ErrorObject(kind=kind, code=get_error_code(kind), step="(store)", message=text)


def is_early_cancel(batches: Sequence[FactBatch], deliveries: Sequence[Delivery]) -> bool:
    """Return whether a request to cancel must wait until its execution has begun."""
    return any(
        isinstance(fact, CancelRequested) for batch in batches for fact in batch.facts
    ) and all(delivery.delivery_count < EARLY_DELIVERIES_MAX for delivery in deliveries)
