"""Callers who would rather wait for an execution's end than follow it (RFC 7240, `wait`)."""

import asyncio
import re
from contextlib import aclosing

from noetl_contracts.envelope import Envelope
from noetl_contracts.errors import Retryable
from noetl_contracts.status import TERMINAL_EXECUTION
from noetl_planner.http import views
from noetl_planner.http.following import STATUS_BY_END, Following, Seats
from noetl_planner.http.services import ApiServices

# So long that most proxies on the way still wait; who wants to wait longer follows the execution.
WAIT_MAX_S = 60
_WAIT = re.compile(r'(?:^|[,;])\s*wait\s*=\s*"?(\d{1,9})"?\s*(?=$|[,;])', re.IGNORECASE)


def wait_s(prefer: str | None) -> int:
    """Return how many seconds a `Prefer` header asks to wait, at most `WAIT_MAX_S`; 0 for none.

    What it says beyond that, and what makes no sense, is left aside, as RFC 7240 has it.
    """
    asked = _WAIT.search(prefer or "")
    return min(int(asked[1]), WAIT_MAX_S) if asked else 0


async def ended(
    services: ApiServices, seats: Seats, accepted: views.Accepted, *, within_s: int
) -> views.Ended | None:
    """Return how an execution ended; None when it has not in time.

    None as well when too many clients wait already, the process ends, or the ledger is away: the
    execution goes on, and whoever asked has its id.
    """
    if not within_s or not seats.has_room(services.streams_max):
        return None
    is_over = accepted.status in TERMINAL_EXECUTION
    following = Following(
        services,
        accepted.execution_id,
        is_over=is_over,
        is_new=not accepted.deduplicated,
        is_patient=True,
    )
    with seats.taken():
        try:
            async with asyncio.timeout(within_s), aclosing(following.pages()) as pages:
                async for _ in pages:
                    if following.end is not None:
                        return _ended(accepted, following.end)
        except (TimeoutError, Retryable):
            return None
    return None


def _ended(accepted: views.Accepted, end: Envelope) -> views.Ended:
    return views.Ended(
        execution_id=accepted.execution_id,
        status=STATUS_BY_END[type(end.event)],
        path=accepted.path,
        version=accepted.version,
        deduplicated=accepted.deduplicated,
        end=views.event_view(end),
    )
