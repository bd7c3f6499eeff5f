"""Waits for an execution's end before answering, as the header `Prefer: wait` requests."""

import asyncio
import re

from noetl_contracts.errors import Retryable
from noetl_contracts.events.execution_events import (
    ExecutionCancelled,
    PlaybookCompleted,
    PlaybookFailed,
)
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.status import TERMINAL_EXECUTION, ExecutionStatus
from noetl_planner.api.http.service_groups import AdmissionLimits
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import views
from noetl_planner.api.watch import event_stream
from noetl_planner.api.watch.stream_access import StreamAccess
from noetl_planner.domain.decision import idempotency_keys
from noetl_planner.shards.commit_feed import EndFeed

# So long that most proxies on the way still wait; who wants to wait longer follows the execution.
WAIT_MAX_S = 60
_WAIT = re.compile(r'(?:^|[,;])\s*wait\s*=\s*"?(\d{1,9})"?\s*(?=$|[,;])', re.IGNORECASE)

_STATUS_BY_END: dict[type, ExecutionStatus] = {
    PlaybookCompleted: ExecutionStatus.COMPLETED,
    PlaybookFailed: ExecutionStatus.FAILED,
    ExecutionCancelled: ExecutionStatus.CANCELLED,
}


def parse_wait_s(prefer: str | None) -> int:
    """Return how many seconds a `Prefer` header asks to wait, at most `WAIT_MAX_S`; 0 for none.

    What it says beyond that, and what makes no sense, is left aside, as RFC 7240 has it.
    """
    match = _WAIT.search(prefer or "")
    return min(int(match[1]), WAIT_MAX_S) if match else 0


async def wait_for_end(
    services: ApiServices,
    accepted: views.Accepted,
    *,
    within_s: int,
    client: str,
    access: StreamAccess | None = None,
) -> views.Ended | None:
    """Return how an execution ended; None when it has not in time, or `access` has ended before.

    None as well when too many clients wait already, the process ends, or the ledger is away: the
    execution goes on, and the client has its id.
    """
    if not within_s or not _has_free_seat(services.admission, client, accepted.execution_id):
        return None
    with services.admission.follower_limiter.hold_seat(client, accepted.execution_id):
        try:
            async with asyncio.timeout(within_s):
                end = await _wait_for_end_event(
                    services,
                    accepted.execution_id,
                    is_over=accepted.status in TERMINAL_EXECUTION,
                    is_new=not accepted.deduplicated,
                    access=access,
                )
        except (TimeoutError, Retryable):
            return None
    return None if end is None else _view_end(accepted, end)


def _has_free_seat(admission: AdmissionLimits, client: str, execution_id: str) -> bool:
    seats, most = admission.follower_limiter, admission.follower_limits
    return (
        seats.has_seat(most)
        and seats.has_client_seat(client, most)
        and seats.has_execution_seat(execution_id, most)
    )


async def _wait_for_end_event(
    services: ApiServices,
    execution_id: ExecutionId,
    *,
    is_over: bool,
    is_new: bool,
    access: StreamAccess | None,
) -> Envelope | None:
    """Wait for the event that ends an execution; None when the process or the access ends before.

    With `is_over` it is there, or its history is gone. With `is_new` there is nothing yet that the
    ledger could be asked for. Raises `Retryable` when the ledger cannot be read.
    """
    awaited, poll_s = EndFeed(), event_stream.POLL_FIRST_S
    async with services.shards.commit_feed.follow_execution(
        services.messages.hints, execution_id, awaited
    ) as listener:
        if is_new:
            await listener.wait_for_commit(within_s=poll_s)
        while not services.stop.is_set():
            awaited.commit_signal.clear()
            end = awaited.end or await services.history.ledger.find_by_key(
                execution_id, idempotency_keys.ENDED
            )
            if access is not None and not await access.is_open():
                return None
            if end is not None or is_over:
                return end
            await listener.wait_for_commit(within_s=poll_s)
            poll_s = min(poll_s * 2, event_stream.POLL_MAX_S)
    return None


def _view_end(accepted: views.Accepted, end: Envelope) -> views.Ended:
    return views.Ended(
        execution_id=accepted.execution_id,
        status=_STATUS_BY_END[type(end.event)],
        path=accepted.path,
        version=accepted.version,
        deduplicated=accepted.deduplicated,
        end=views.view_event(end),
    )
