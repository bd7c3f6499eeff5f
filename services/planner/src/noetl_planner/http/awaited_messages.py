"""Which messages from outside an execution waits for: approvals, signals and callbacks."""

from datetime import datetime, timedelta

from msgspec import Struct

from noetl_contracts import letters
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import OpenWait
from noetl_planner.http.services import ApiServices

MESSAGES_MAX = 20


class AwaitedMessage(Struct, frozen=True, kw_only=True):
    """A message that a step waits for, since when, and when it waits no longer.

    `approval_id` is set for an approval, `correlation_key` for a signal. `command` is that of the
    command line which sends it, empty for a callback: only its token's holder sends that.
    """

    step: str
    task: str
    mode: str
    command: str
    since: datetime | None
    until: datetime | None
    approval_id: str | None = None
    correlation_key: str | None = None
    title: str | None = None
    options: list[str] = []


async def list_awaited(services: ApiServices, execution_id: ExecutionId) -> list[AwaitedMessage]:
    """Return what an execution waits for, the longest waiting first, 20 at most."""
    waits = await services.projections.list_waits(
        **services.place, execution_id=execution_id, waits_max=MESSAGES_MAX
    )
    return [_view(wait) for wait in waits]


def _view(waiting: OpenWait) -> AwaitedMessage:
    wait = waiting.wait
    is_approval, is_signal = wait.mode == letters.APPROVAL, wait.mode == letters.SIGNAL
    return AwaitedMessage(
        step=waiting.step,
        task=wait.task,
        mode=wait.mode,
        command=letters.sending_command(wait),
        since=waiting.since,
        until=_end(waiting),
        approval_id=wait.address.partition("/")[2] if is_approval else None,
        correlation_key=wait.correlation_key if is_signal else None,
        title=wait.title,
        options=wait.options,
    )


def _end(waiting: OpenWait) -> datetime | None:
    """Return when the wait ends; what is further away than dates go has none."""
    if waiting.since is None:
        return None
    try:
        return waiting.since + timedelta(seconds=waiting.wait.timeout_s)
    except OverflowError:
        return None
