"""Clocks: the only code that reads the time."""

import time
from datetime import UTC, datetime
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
