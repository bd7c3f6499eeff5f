"""Run a step until told to stop; the one place that survives every error."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import structlog
from msgspec import Struct

from noetl_chassis import backoff, identity, instruments, names
from noetl_chassis.clock import Clock, SystemClock
from noetl_contracts.errors import Retryable

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Patience(Struct, frozen=True, kw_only=True):
    """How long a loop rests after errors in a row."""

    base_s: float = 0.1
    max_s: float = 5.0


class Source(Protocol[T]):
    """What `drain` reads from; a messaging consumer is one."""

    async def fetch(self, *, messages_max: int, wait_s: float) -> list[T]:
        """Return what is there, waiting for the first."""


class Pulse:
    """Remembers when a loop last turned without an error; `check` is a readiness check."""

    def __init__(self, name: str, *, stale_s: float, clock: Clock | None = None) -> None:
        self.name = name
        self._stale_s = stale_s
        self._clock = clock or SystemClock()
        self._beat_at: float | None = None
        self.last_error = ""

    def beat(self) -> None:
        """Note a good turn."""
        self._beat_at = self._clock.monotonic()
        self.last_error = ""

    def miss(self, reason: str) -> None:
        """Note a failed turn."""
        self.last_error = reason

    def check(self) -> str | None:
        """Say why the loop is not well, or None."""
        tail = f": {self.last_error}" if self.last_error else ""
        if self._beat_at is None:
            return f"{self.name} has not turned yet{tail}"
        age_s = self._clock.monotonic() - self._beat_at
        if age_s > self._stale_s:
            return f"{self.name} has not turned for {age_s:.0f} s{tail}"
        return None


async def every(
    interval_s: float,
    step: Callable[[], Awaitable[object]],
    *,
    stop: asyncio.Event,
    name: str = "loop",
    pulse: Pulse | None = None,
    patience: Patience | None = None,
) -> None:
    """Call `step`, rest `interval_s`, repeat; return promptly once `stop` is set."""
    turns = _Turns(name, pulse=pulse, patience=patience)
    while not stop.is_set():
        await turns.take(step)
        await rest(max(interval_s, turns.penalty_s), stop)


async def pump(
    step: Callable[[], Awaitable[int]],
    *,
    idle_s: float,
    stop: asyncio.Event,
    wake: asyncio.Event | None = None,
    name: str = "pump",
    pulse: Pulse | None = None,
    patience: Patience | None = None,
) -> None:
    """Call `step` again at once while it did something, else rest until woken or `idle_s`."""
    turns = _Turns(name, pulse=pulse, patience=patience)
    while not stop.is_set():
        if wake is not None:
            wake.clear()
        done = await turns.take(step)
        if turns.penalty_s:
            await rest(turns.penalty_s, stop)
        elif not done:
            await rest(idle_s, stop, wake)


async def drain(
    source: Source[T],
    step: Callable[[list[T]], Awaitable[object]],
    *,
    stop: asyncio.Event,
    messages_max: int,
    wait_s: float,
    name: str = "drain",
    pulse: Pulse | None = None,
    patience: Patience | None = None,
) -> None:
    """Fetch, hand what came to `step`, repeat; whatever `step` left unsettled comes again."""
    turns = _Turns(name, pulse=pulse, patience=patience)

    async def turn() -> None:
        batch = await source.fetch(messages_max=messages_max, wait_s=wait_s)
        if batch:
            await step(batch)

    while not stop.is_set():
        await turns.take(turn)
        if turns.penalty_s:
            await rest(turns.penalty_s, stop)


async def rest(seconds: float, stop: asyncio.Event, wake: asyncio.Event | None = None) -> None:
    """Wait, but not beyond `stop` or `wake`."""
    if stop.is_set() or (wake is not None and wake.is_set()):
        return
    try:
        async with asyncio.timeout(seconds):
            await _first_of(stop, wake)
    except TimeoutError:
        return


async def _first_of(stop: asyncio.Event, wake: asyncio.Event | None) -> None:
    if wake is None:
        await stop.wait()
        return
    waits = [asyncio.ensure_future(event.wait()) for event in (stop, wake)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


class _Turns:
    """Takes turns of one loop: counts, logs and remembers how long to rest after errors."""

    def __init__(self, name: str, *, pulse: Pulse | None, patience: Patience | None) -> None:
        self._name = name
        self._pulse = pulse
        self._patience = patience or Patience()
        self._clock = SystemClock()
        self._failures = 0

    @property
    def penalty_s(self) -> float:
        """Return how long to rest because of errors in a row; 0 after a good turn."""
        if not self._failures:
            return 0.0
        return backoff.delay_s(
            self._failures,
            base_s=self._patience.base_s,
            max_s=self._patience.max_s,
            noise=identity.noise(),
        )

    async def take(self, step: Callable[[], Awaitable[T]]) -> T | None:
        """Run one turn; an error is logged and counted, and None returned."""
        started = self._clock.monotonic()
        try:
            outcome = await step()
        except Exception as failure:  # noqa: BLE001 - a loop outlives whatever one turn met
            self._note(failure)
            return None
        instruments.record(
            names.LOOP_DURATION, self._clock.monotonic() - started, labels={names.LOOP: self._name}
        )
        self._failures = 0
        if self._pulse is not None:
            self._pulse.beat()
        return outcome

    def _note(self, failure: Exception) -> None:
        self._failures += 1
        kind = type(failure).__name__
        labels = {names.LOOP: self._name, names.ERROR: kind}
        instruments.count(names.LOOP_FAILURES, labels=labels)
        if self._pulse is not None:
            self._pulse.miss(f"{kind}: {failure}")
        # What may pass by itself needs no traceback; everything else may be our own fault.
        log.warning(
            "turn failed",
            loop=self._name,
            error=kind,
            reason=str(failure),
            failures_in_a_row=self._failures,
            exc_info=None if isinstance(failure, Retryable) else failure,
        )
