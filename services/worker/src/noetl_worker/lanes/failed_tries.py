"""The attempts of a pipeline's tasks that failed and were followed by others."""

from datetime import datetime

from noetl_contracts.errors import TRIES_MAX, ErrorObject, FailedTry
from noetl_worker.domain.texts import shortened
from noetl_worker.lanes.parking import Walk

_MESSAGE_CHARACTERS_MAX = 300


def keep_failed_try(walk: Walk, task: str, error: ErrorObject, *, now: datetime) -> None:
    """Keep what the current attempt failed of; of more than `TRIES_MAX` the latest stay."""
    failed_try = FailedTry(
        task=task,
        attempt=walk.attempt,
        at=walk.started_at or now,
        kind=error.kind,
        message=shortened(error.message, _MESSAGE_CHARACTERS_MAX),
        code=error.code,
    )
    walk.tries = [*walk.tries, failed_try][-TRIES_MAX:]


def list_failed_tries(walk: Walk, task: str | None) -> list[FailedTry]:
    """List the attempts of one task that failed before the current one."""
    return [failed_try for failed_try in walk.tries if failed_try.task == task]
