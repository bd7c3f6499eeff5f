"""How many connections were in use at once, and how many callers waited for one, of late."""

from collections.abc import Callable
from time import monotonic

# A mark covers the window that runs and the one before it: a look each minute misses none.
WINDOW_S = 60.0


class HighWaterMark:
    """The highest of a changing count within the last one to two minutes."""

    __slots__ = ("_highest", "_highest_before", "_level", "_read_clock", "_window")

    def __init__(self, read_clock: Callable[[], float] = monotonic) -> None:
        self._read_clock = read_clock
        self._level = self._highest = self._highest_before = 0
        self._window = int(read_clock() // WINDOW_S)

    @property
    def level(self) -> int:
        """Return the count as it is now."""
        return self._level

    def change_level(self, by: int) -> None:
        """Raise or lower the count."""
        self._enter_window()
        self._level += by
        self._highest = max(self._highest, self._level)

    def read_highest(self) -> int:
        """Return the highest count."""
        self._enter_window()
        return max(self._highest, self._highest_before)

    def _enter_window(self) -> None:
        window = int(self._read_clock() // WINDOW_S)
        if window == self._window:
            return
        # Nothing changed in windows that were skipped.
        self._highest_before = self._highest if window == self._window + 1 else self._level
        self._highest = self._level
        self._window = window


class ConnectionPeaks:
    """The marks of one pool of connections, or of several together."""

    __slots__ = ("in_use", "waiting")

    def __init__(self) -> None:
        self.in_use = HighWaterMark()
        self.waiting = HighWaterMark()
