"""Clocks: the only code that reads the time, and one that tests set by hand."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Tells the time of day, and time that never goes back."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""

    def monotonic_s(self) -> float:
        """Return seconds since some fixed point; only differences mean anything."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Return seconds since some fixed point; only differences mean anything."""
        return time.monotonic()


class ManualClock:
    """A clock that moves only when it is told to."""

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._monotonic_s = 0.0

    def now(self) -> datetime:
        """Return the time to which the clock was last moved."""
        return self._now

    def monotonic_s(self) -> float:
        """Return how far the clock was moved since its start."""
        return self._monotonic_s

    def advance_by(self, seconds: float) -> None:
        """Move both readings on."""
        self._now += timedelta(seconds=seconds)
        self._monotonic_s += seconds

    def set_back(self, seconds: float) -> None:
        """Move the time of day back, as an operator might; the other reading stays."""
        self._now -= timedelta(seconds=seconds)
