"""Run a step until told to stop; the one place that survives every error."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from msgspec import Struct

from noetl_chassis import identity
from noetl_chassis.clock import Clock, SystemClock
from noetl_chassis.observability import instruments, names
from noetl_chassis.structured_log import structlog
from noetl_contracts.errors import Retryable

T = TypeVar("T")

log = structlog.get_logger(__name__)
FACTOR = 2.0
# The name of noetl_storage's error, which this library does not import.
STORAGE_FULL = "StorageFull"
_EXPONENT_MAX = 32


class RetryPauses(Struct, frozen=True, kw_only=True):
    """How long a loop rests after errors in a row."""

    base_s: float = 0.1
    max_s: float = 5.0


class BatchSource(Protocol[T]):
    """What `run_on_batches` reads from; a messaging consumer is one."""

    async def fetch_batch(self, *, messages_max: int, wait_s: float) -> list[T]:
        """Return what is there, waiting for the first."""


class LoopHealth:
    """Remembers when a loop last turned without an error; `check_health` is a readiness check."""

    def __init__(self, name: str, *, stale_s: float, clock: Clock | None = None) -> None:
        self.name = name
        self._stale_s = stale_s
        self._clock = clock or SystemClock()
        self._beat_at: float | None = None
        self.last_error = ""

    def note_success(self) -> None:
        """Note a good turn."""
        self._beat_at = self._clock.monotonic_s()
        self.last_error = ""

    def note_failure(self, reason: str) -> None:
        """Note a failed turn."""
        self.last_error = reason

    def check_health(self) -> str | None:
        """Say why the loop is not well, or None."""
        tail = f": {self.last_error}" if self.last_error else ""
        if self._beat_at is None:
            return f"{self.name} has not turned yet{tail}"
        age_s = self._clock.monotonic_s() - self._beat_at
        if age_s > self._stale_s:
            return f"{self.name} has not turned for {age_s:.0f} s{tail}"
        return None


async def run_every(
    interval_s: float,
    step: Callable[[], Awaitable[object]],
    *,
    stop: asyncio.Event,
    name: str = "loop",
    loop_health: LoopHealth | None = None,
    retry_pauses: RetryPauses | None = None,
) -> None:
    """Call `step`, rest `interval_s`, repeat; return promptly once `stop` is set."""
    with _open_turns(name, loop_health, retry_pauses) as turns:
        while not stop.is_set():
            await turns.run_turn(step)
            await wait_for_wake(max(interval_s, turns.penalty_s), stop)


async def run_while_busy(
    step: Callable[[], Awaitable[int]],
    *,
    idle_s: float,
    stop: asyncio.Event,
    wake: asyncio.Event | None = None,
    name: str = "pump",
    loop_health: LoopHealth | None = None,
    retry_pauses: RetryPauses | None = None,
) -> None:
    """Call `step` again at once while it did something, else rest until woken or `idle_s`."""
    with _open_turns(name, loop_health, retry_pauses) as turns:
        while not stop.is_set():
            if wake is not None:
                wake.clear()
            work_count = await turns.run_turn(step)
            if turns.penalty_s:
                await wait_for_wake(turns.penalty_s, stop)
            elif not work_count:
                await wait_for_wake(idle_s, stop, wake)


async def run_on_batches(
    source: BatchSource[T],
    step: Callable[[list[T]], Awaitable[object]],
    *,
    stop: asyncio.Event,
    messages_max: int,
    wait_s: float,
    name: str = "drain",
    loop_health: LoopHealth | None = None,
    retry_pauses: RetryPauses | None = None,
) -> None:
    """Fetch deliveries, pass them to `step`, repeat; unsettled deliveries come again."""

    async def run_turn() -> None:
        batch = await source.fetch_batch(messages_max=messages_max, wait_s=wait_s)
        if batch:
            await step(batch)

    with _open_turns(name, loop_health, retry_pauses) as turns:
        while not stop.is_set():
            await turns.run_turn(run_turn)
            if turns.penalty_s:
                await wait_for_wake(turns.penalty_s, stop)


async def wait_for_wake(
    seconds: float, stop: asyncio.Event, wake: asyncio.Event | None = None
) -> None:
    """Wait, but not beyond `stop` or `wake`."""
    if stop.is_set() or (wake is not None and wake.is_set()):
        return
    try:
        async with asyncio.timeout(seconds):
            await _wait_for_first(stop, wake)
    except TimeoutError:
        return


async def _wait_for_first(stop: asyncio.Event, wake: asyncio.Event | None) -> None:
    if wake is None:
        await stop.wait()
        return
    waits = [asyncio.ensure_future(event.wait()) for event in (stop, wake)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


@contextmanager
def _open_turns(
    name: str, loop_health: LoopHealth | None, retry_pauses: RetryPauses | None
) -> Iterator["_LoopTurns"]:
    turns = _LoopTurns(name, loop_health=loop_health, retry_pauses=retry_pauses)
    try:
        yield turns
    finally:
        turns.forget_failures()


class _LoopTurns:
    """Takes turns of one loop: counts, logs and remembers how long to rest after errors."""

    def __init__(
        self, name: str, *, loop_health: LoopHealth | None, retry_pauses: RetryPauses | None
    ) -> None:
        self._name = name
        self._health = loop_health
        self._pauses = retry_pauses or RetryPauses()
        self._clock = SystemClock()
        self._failures = 0
        # An alert is on this one alone, so that its first failure must be seen to rise.
        labels = {names.LOOP: name, names.ERROR: STORAGE_FULL}
        instruments.begin_counter(names.LOOP_FAILURES, labels=labels)
        self._show_failures(0)

    @property
    def penalty_s(self) -> float:
        """Return how long to rest because of errors in a row; 0 after a good turn."""
        if not self._failures:
            return 0.0
        return compute_backoff_s(
            self._failures,
            base_s=self._pauses.base_s,
            max_s=self._pauses.max_s,
            noise=identity.draw_noise(),
        )

    async def run_turn(self, step: Callable[[], Awaitable[T]]) -> T | None:
        """Run one turn; an error is logged and counted, and None returned."""
        started_s = self._clock.monotonic_s()
        try:
            outcome = await step()
        except Exception as failure:  # noqa: BLE001 - a loop outlives every failed turn
            self._note_failure(failure)
            return None
        instruments.record_measurement(
            names.LOOP_DURATION,
            self._clock.monotonic_s() - started_s,
            labels={names.LOOP: self._name},
        )
        if self._failures:
            self._show_failures(0)
        if self._health is not None:
            self._health.note_success()
        return outcome

    def forget_failures(self) -> None:
        """Show no failures: a loop that is no more does not fail."""
        if self._failures:
            self._show_failures(0)

    def _show_failures(self, failures: int) -> None:
        self._failures = failures
        labels = {names.LOOP: self._name}
        instruments.set_gauge(names.LOOP_FAILURES_IN_ROW, failures, labels=labels)

    def _note_failure(self, failure: Exception) -> None:
        self._show_failures(self._failures + 1)
        kind = type(failure).__name__
        labels = {names.LOOP: self._name, names.ERROR: kind}
        instruments.add_to_counter(names.LOOP_FAILURES, labels=labels)
        if self._health is not None:
            self._health.note_failure(f"{kind}: {failure}")
        # What may pass by itself needs no traceback; everything else may be our own fault.
        log.warning(
            "turn failed",
            loop=self._name,
            error=kind,
            reason=str(failure),
            failures_in_a_row=self._failures,
            exc_info=None if isinstance(failure, Retryable) else failure,
        )


async def sleep_backoff(attempt: int, *, base_s: float, max_s: float) -> None:
    """Sleep before trying again what has failed `attempt` times; spread at random."""
    noise = identity.draw_noise()
    await asyncio.sleep(compute_backoff_s(attempt, base_s=base_s, max_s=max_s, noise=noise))


def compute_backoff_s(attempt: int, *, base_s: float, max_s: float, noise: float) -> float:
    """Double from `base_s` up to `max_s`; `noise` from 0 up to 1 spreads over the upper half."""
    full = min(max_s, base_s * FACTOR ** min(max(attempt - 1, 0), _EXPONENT_MAX))
    return full * (0.5 + 0.5 * noise)
