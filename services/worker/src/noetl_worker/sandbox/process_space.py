"""A space of processes of its own: what is in it sees no others, and ends with it.

The process that enters it stays outside and ends as the command ends. The first process inside
takes in orphans, as any first process does. When it ends, the kernel ends all that is inside.
"""

import ctypes
import os
import resource
import select
import signal
import struct
from types import FrameType
from typing import NoReturn

_DIE_WITH_PARENT = 1
_DESCRIPTORS_MAX = 65536
_STATUS = struct.Struct("i")
_SIGNAL_EXIT_BASE = 128
# The launcher ends what a command has left behind in less.
_LEFTOVERS_S = 60


def enter_process_space(libc: ctypes.CDLL) -> None:
    """Go on as a process inside; children of this one begin in a new space already."""
    status, status_end = os.pipe()
    first = os.fork()
    if first:
        os.close(status_end)
        _end_as_inside(status)
    os.close(status)
    libc.prctl(_DIE_WITH_PARENT, signal.SIGUSR1, 0, 0, 0)
    command = os.fork()
    if command:
        _FirstProcess(command, status_end).run()
    os.close(status_end)
    libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)


def _end_as_inside(status: int) -> NoReturn:
    """Wait for the command's end, holding nothing that others wait for."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, status)
    os.closerange(status + 1, _DESCRIPTORS_MAX)
    status_bytes = os.read(status, _STATUS.size)
    end_with_status(
        _STATUS.unpack(status_bytes)[0] if len(status_bytes) == _STATUS.size else signal.SIGKILL
    )


class _FirstProcess:
    """Takes in orphans and tells outside how the command ended."""

    def __init__(self, command: int, status: int) -> None:
        self._command = command
        self._status = status
        self._has_ended = False

    def run(self) -> NoReturn:
        """Stay until nothing is left inside."""
        os.closerange(0, self._status)
        os.closerange(self._status + 1, _DESCRIPTORS_MAX)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, self._leave_if_alone)
        signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
        if _is_unread(self._status):
            os._exit(1)
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                os._exit(0)
            if pid == self._command:
                self._has_ended = True
                os.write(self._status, _STATUS.pack(status))
                os.close(self._status)
                signal.alarm(_LEFTOVERS_S)

    def _leave_if_alone(self, _number: int, _frame: FrameType | None) -> None:
        """End all that is inside when the process outside has ended before the command."""
        if not self._has_ended:
            os._exit(1)


def _is_unread(pipe: int) -> bool:
    """Tell whether nobody holds the other end of a pipe any more."""
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def end_with_status(status: int) -> NoReturn:
    """End this process as another has ended, with its code or by its signal."""
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(_SIGNAL_EXIT_BASE + number)
