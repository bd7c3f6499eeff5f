"""Coarser timers for servers that otherwise wake two thousand times a second, and more at times.

A thread of Go's runtime looks after the others every 20 us for as long as any of them works, and
Linux wakes it 50 us late: each time it interrupts the process that runs on that processor. With
timers that may be a millisecond late a broker costs a quarter less beside a chain of small steps.

As a program it sets that (prctl(2), PR_SET_TIMERSLACK, which is inherited) and becomes the command
that follows. It imports the standard library alone, so that it starts at once.
"""

import ctypes
import os
import sys

_PR_SET_TIMERSLACK = 29
_SLACK_NS = 1_000_000
_CANNOT_RUN = 126


def with_coarse_timers(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs a command with timers up to a millisecond late."""
    if sys.platform != "linux":
        return argv
    return (sys.executable, "-I", "-S", __file__, *argv)


def _become_command(argv: list[str]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)
    try:
        os.execv(argv[0], argv)  # noqa: S606 - argv comes from our own specs
    except OSError as failure:
        print(f"{argv[0]} cannot be run: {failure.strerror or failure}", file=sys.stderr)  # noqa: T201 - the server's log is all that there is
        sys.exit(_CANNOT_RUN)


if __name__ == "__main__":
    _become_command(sys.argv[1:])
