"""A clock that tests set by hand."""

from datetime import datetime, timedelta


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
