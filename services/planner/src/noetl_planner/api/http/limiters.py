"""Limits how many clients wait for work, and how many follow executions, at once."""

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from http import HTTPStatus
from time import monotonic

from msgspec import Struct

from noetl_contracts.lru_cache import LruCache
from noetl_planner.api.http.problems import ApiError
from noetl_planner.identity.principals import Principal

# Each waiting client queries the database once a second: this many leave room for reports.
WAITING_MAX = 128
# A worker asks for one command at a time, or for a few on behalf of its threads.
WAITING_OF_WORKER_MAX = 8
RETRY_AFTER_S = 1
_BURST_S = 2
_PRINCIPALS_MAX = 4096


class CallBuckets:
    """Counts calls by who makes them: a bucket for each fills at a rate, and holds two seconds."""

    def __init__(self) -> None:
        self._buckets = LruCache[Hashable, tuple[float, float]](entries_max=_PRINCIPALS_MAX)

    def take_call(self, key: Hashable, rate: float) -> float:
        """Count a call; return for how many seconds there is no room, 0 where there is."""
        now, most = monotonic(), max(1.0, rate * _BURST_S)
        calls_left, at = self._buckets.find_value(key) or (most, now)
        calls_left = min(most, calls_left + (now - at) * rate)
        self._buckets.keep_value(key, (max(calls_left - 1, 0), now))
        return 0.0 if calls_left >= 1 else (1 - calls_left) / rate


class CallRateLimiter:
    """Bounds how often each principal calls.

    The owner of the installation is not bounded, nor anybody at a rate of 0.
    """

    def __init__(self, calls_per_s: float = 0) -> None:
        self._calls_per_s = calls_per_s
        self._buckets = CallBuckets()

    def admit_call(self, principal: Principal) -> None:
        """Count a call; raises a 429 that says when there is room again."""
        rate = self._calls_per_s
        if rate <= 0 or principal.has_all_roles:
            return
        # Accounts of two tenants may have the same name; persons have no home.
        key = principal.kind, principal.issuer, principal.id, principal.home
        wait_s = self._buckets.take_call(key, rate)
        if wait_s:
            raise build_too_many_calls_error(principal.name, rate, wait_s=wait_s)


def build_too_many_calls_error(who: str, rate: float, *, wait_s: float) -> ApiError:
    """Build a 429 that says how often somebody may call, and when there is room again."""
    return ApiError(
        HTTPStatus.TOO_MANY_REQUESTS,
        code="too_many_requests",
        detail=f"{who} calls more often than {rate:g} times a second",
        hint="call again later, or less often",
        headers={"Retry-After": str(max(1, round(wait_s)))},
    )


class ClaimLimiter:
    """Counts the requests that wait for work, and reserves the command that one of them claims.

    Each source of work has a limit of its own: a source is a pool, or all stages together.
    """

    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()
        self._of_worker: Counter[tuple[str, str]] = Counter()
        self._reserved_commands: set[str] = set()

    @contextmanager
    def limit_waiting(self, source: str, worker_id: str) -> Iterator[None]:
        """Be counted for as long as the block runs; raises a 429 when there is no room."""
        worker = source, worker_id
        if self._of_worker[worker] >= WAITING_OF_WORKER_MAX:
            raise _build_too_many_claims_error(
                f"worker {worker_id} asks {WAITING_OF_WORKER_MAX} times at once already",
                hint="ask for one command at a time, and for the next one after the answer",
            )
        if self._waiting[source] >= WAITING_MAX:
            raise _build_too_many_claims_error(
                f"{WAITING_MAX} workers wait for work of {source} already",
                hint="claim again later, or let fewer workers ask: each command goes to one",
            )
        self._waiting[source] += 1
        self._of_worker[worker] += 1
        try:
            yield
        finally:
            self._stop_waiting(source, worker)

    @contextmanager
    def reserve_command(self, command_id: str) -> Iterator[bool]:
        """Try to take a command; False when somebody in this process tries at the moment."""
        if command_id in self._reserved_commands:
            yield False
            return
        self._reserved_commands.add(command_id)
        try:
            yield True
        finally:
            self._reserved_commands.discard(command_id)

    def _stop_waiting(self, source: str, worker: tuple[str, str]) -> None:
        self._waiting[source] -= 1
        self._of_worker[worker] -= 1
        # Names that are not there any more are not kept.
        if not self._of_worker[worker]:
            del self._of_worker[worker]


def _build_too_many_claims_error(detail: str, *, hint: str) -> ApiError:
    return ApiError(
        HTTPStatus.TOO_MANY_REQUESTS,
        code="too_many_claims",
        detail=detail,
        hint=hint,
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


class FollowerLimits(Struct, frozen=True, kw_only=True):
    """How many clients may follow in all, from one address, and of one execution."""

    all: int = 256
    client: int = 64
    execution: int = 128


class FollowerSeat(AbstractContextManager[None]):
    """A client's place, counted from its making until it is left, or nobody holds it any more.

    A response that is never begun does not come to leave its place.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self._finalizer = weakref.finalize(self, release)

    def __exit__(self, *_: object) -> None:
        self._finalizer()


class FollowerLimiter:
    """Counts the clients that follow executions."""

    def __init__(self) -> None:
        self._follower_count = 0
        self._count_by_client: Counter[str] = Counter()
        self._count_by_execution: Counter[str] = Counter()

    def hold_seat(self, client: str, execution_id: str) -> FollowerSeat:
        """Keep a seat from now on until its block ends."""
        self._count_follower(client, execution_id, 1)
        return FollowerSeat(partial(self._count_follower, client, execution_id, -1))

    def has_seat(self, limits: FollowerLimits) -> bool:
        """Tell whether one more client may follow."""
        return self._follower_count < limits.all

    def has_client_seat(self, client: str, limits: FollowerLimits) -> bool:
        """Tell whether one client may follow once more."""
        return self._count_by_client[client] < limits.client

    def has_execution_seat(self, execution_id: str, limits: FollowerLimits) -> bool:
        """Tell whether one execution may be followed once more."""
        return self._count_by_execution[execution_id] < limits.execution

    def _count_follower(self, client: str, execution_id: str, change: int) -> None:
        self._follower_count += change
        for counts, key in (
            (self._count_by_client, client),
            (self._count_by_execution, execution_id),
        ):
            counts[key] += change
            if not counts[key]:
                del counts[key]
