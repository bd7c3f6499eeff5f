"""Where the output of a task goes: the port of its log."""

from typing import Protocol


class Log(Protocol):
    """Where a task's output goes, line by line."""

    def write(self, stream: str, data: bytes) -> None:
        """Take bytes of a stream; a line is stored when its end has come."""

    def add_line(self, stream: str, text: str, *, level: str = "") -> None:
        """Take one whole line."""

    async def wait_for_room(self) -> None:
        """Return when more may be written."""

    def finish(self) -> None:
        """Take what came without an end of line."""


class NoLog:
    """Drops the output of calls that nobody keeps a log of."""

    def write(self, stream: str, data: bytes) -> None:
        """Drop it."""

    def add_line(self, stream: str, text: str, *, level: str = "") -> None:
        """Drop it."""

    async def wait_for_room(self) -> None:
        """Return at once."""

    def finish(self) -> None:
        """Do nothing."""
