"""Shows the high-water marks of a pool of connections to PostgreSQL."""

from typing import Protocol

from noetl_chassis.observability import instruments, names

# Whose connections they are: the service's own, or those that tasks use.
LEDGER = "ledger"
TASKS = "tasks"


class Mark(Protocol):
    """The highest of a changing count."""

    def read_highest(self) -> int:
        """Return the highest count of late."""


class Peaks(Protocol):
    """The marks of a pool."""

    @property
    def in_use(self) -> Mark:
        """Return the mark of connections in use."""

    @property
    def waiting(self) -> Mark:
        """Return the mark of callers that waited for a connection."""


def show_connection_peaks(peaks: Peaks, *, database: str) -> None:
    """Show the marks at each scrape from now on."""
    labels = {names.DATABASE: database}
    instruments.read_gauge_from(names.CONNECTIONS_PEAK, peaks.in_use.read_highest, labels=labels)
    instruments.read_gauge_from(
        names.CONNECTION_WAITERS_PEAK, peaks.waiting.read_highest, labels=labels
    )
