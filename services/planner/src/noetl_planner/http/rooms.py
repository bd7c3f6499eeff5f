"""How many may wait for work at once: so many a pool, so many a worker, and none beyond."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from noetl_planner.http.problems import ApiError

# Who waits asks the database once a second: so many leave room for whoever reports.
WAITING_MAX = 128
# A worker asks for one command at a time, or for a few on behalf of its threads.
WAITING_OF_WORKER_MAX = 8
RETRY_AFTER_S = 1


class Rooms:
    """Who waits for work at the moment, by the place that it comes from, and what they reach for.

    A place is a pool, or all stages together: who floods one leaves the others alone.
    """

    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()
        self._of_worker: Counter[tuple[str, str]] = Counter()
        self._reached_for: set[str] = set()

    @contextmanager
    def wait(self, place: str, worker_id: str) -> Iterator[None]:
        """Be counted for as long as the block runs; raises a 429 when there is no room."""
        worker = place, worker_id
        if self._of_worker[worker] >= WAITING_OF_WORKER_MAX:
            raise _too_many(
                f"worker {worker_id} asks {WAITING_OF_WORKER_MAX} times at once already",
                hint="ask for one command at a time, and for the next one after the answer",
            )
        if self._waiting[place] >= WAITING_MAX:
            raise _too_many(
                f"{WAITING_MAX} workers wait for work of {place} already",
                hint="claim again later, or let fewer workers ask: each command goes to one",
            )
        self._waiting[place] += 1
        self._of_worker[worker] += 1
        try:
            yield
        finally:
            self._leave(place, worker)

    @contextmanager
    def reach_for(self, command_id: str) -> Iterator[bool]:
        """Try to take a command; False when somebody in this process tries at the moment."""
        if command_id in self._reached_for:
            yield False
            return
        self._reached_for.add(command_id)
        try:
            yield True
        finally:
            self._reached_for.discard(command_id)

    def _leave(self, place: str, worker: tuple[str, str]) -> None:
        self._waiting[place] -= 1
        self._of_worker[worker] -= 1
        # Names that are not there any more are not kept.
        if not self._of_worker[worker]:
            del self._of_worker[worker]


def _too_many(what: str, *, hint: str) -> ApiError:
    return ApiError(
        HTTPStatus.TOO_MANY_REQUESTS,
        code="too_many_claims",
        detail=what,
        hint=hint,
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )
