"""Starts a command and stays beside it until it and everything that it started have ended.

The worker holds the other end of a pipe. When that end closes, as it does when the worker is
killed, the launcher kills the command with all its descendants, those that left its session
included: on Linux an orphan of the command becomes a child of the launcher. On other systems it
kills the command's process group.

As a program it reads options and a command: `life` is the descriptor of the pipe, `grace_s` the
time between SIGTERM and SIGKILL, `walls` the bounds of `confinement`, or null where the command
confines itself. It ends as the command ends, with its code or by its signal. It imports the
standard library alone, so that it starts without the worker's packages.
"""

import contextlib
import ctypes
import json  # noqa: TID251 - it starts without the worker's packages
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

if not __package__:
    sys.path.append(str(Path(__file__).parents[2]))

from noetl_worker.sandbox import confinement, process_space

_DIE_WITH_PARENT = 1
_ADOPT_ORPHANS = 36
_IS_LINUX = sys.platform == "linux"
_DESCRIPTORS_MAX = 65536
_KILL_INTERVAL_S = 0.01
# A process that is not gone so long after SIGKILL hangs in the kernel.
_KILL_S_MAX = 10.0
_SIGNAL_EXIT_BASE = 128


class CommandWatch:
    """The command's process, seen from the launcher."""

    def __init__(self, leader: int, *, life: int, grace_s: float) -> None:
        self._leader = leader
        self._life = life
        self._grace_s = grace_s
        self._status: int | None = None
        self._is_end_requested = False
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._signals, self._signal_end = os.pipe()

    def run(self) -> NoReturn:
        """Wait until the command and its descendants have ended, then end as the command did."""
        self._keep_descriptors()
        self._listen_for_signals()
        while self._reap_children():
            wait_s = self._signal_descendants()
            if wait_s is not None and wait_s <= 0:
                break
            readable, _, _ = select.select(self._list_descriptors(), [], [], wait_s)
            if self._life in readable:
                self._life = -1
                self._kill_at = time.monotonic()
            if self._signals in readable:
                os.read(self._signals, 512)
        _end_as_command(self._status)

    def _keep_descriptors(self) -> None:
        """Let go of the command's pipes, whose readers wait for their end."""
        null_descriptor = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null_descriptor, number)
        first = 3
        for number in sorted((self._life, self._signals, self._signal_end)):
            os.closerange(first, number)
            first = number + 1
        os.closerange(first, _DESCRIPTORS_MAX)

    def _listen_for_signals(self) -> None:
        os.set_blocking(self._signal_end, False)
        signal.set_wakeup_fd(self._signal_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._note_request())

    def _note_request(self) -> None:
        self._is_end_requested = True

    def _list_descriptors(self) -> list[int]:
        return [self._signals] if self._life < 0 else [self._signals, self._life]

    def _reap_children(self) -> bool:
        """Take the ends of processes; tell whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._leader:
                self._status = status

    def _signal_descendants(self) -> float | None:
        """Send what is due; return how long nothing else is, and 0 when nothing helps."""
        now = time.monotonic()
        if self._kill_at is None:
            if self._status is None and not self._is_end_requested:
                return None
            self._kill_at = now + self._grace_s
            _send_signal(signal.SIGTERM, self._leader)
        if now < self._kill_at:
            return self._kill_at - now
        if self._give_up_at is None:
            self._give_up_at = now + _KILL_S_MAX
        _send_signal(signal.SIGKILL, self._leader)
        return _KILL_INTERVAL_S if now < self._give_up_at else 0.0


def _send_signal(number: int, leader: int) -> None:
    """Signal every descendant of this process."""
    if number == signal.SIGKILL or not _IS_LINUX:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)
    for pid in _list_descendants() if _IS_LINUX else ():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _list_descendants() -> list[int]:
    children_by_parent: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(entry.path, "stat").read_bytes()
                # The name of a program stands in parentheses, and may hold some.
                parent = int(stat.rpartition(b")")[2].split()[1])
                children_by_parent.setdefault(parent, []).append(int(entry.name))
    descendants = list(children_by_parent.get(os.getpid(), ()))
    for pid in descendants:
        descendants += children_by_parent.get(pid, ())
    return descendants


def _end_as_command(status: int | None) -> NoReturn:
    process_space.end_with_status(signal.SIGKILL if status is None else status)


def _stay_beside(options: dict[str, Any]) -> None:
    """Fork; return in the command's process alone."""
    libc = ctypes.CDLL(None, use_errno=True) if _IS_LINUX else None
    if libc is not None:
        libc.prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    launcher = os.getpid()
    leader = os.fork()
    if leader:
        CommandWatch(leader, life=options["life"], grace_s=options["grace_s"]).run()
    os.close(options["life"])
    os.setsid()
    if libc is not None:
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:
        os._exit(_SIGNAL_EXIT_BASE + signal.SIGKILL)


def main() -> None:
    """Start the command behind the first argument and watch it."""
    options = json.loads(sys.argv[1])
    _stay_beside(options)
    confinement.become_command(options["walls"], sys.argv[2:])


if __name__ == "__main__":
    main()
