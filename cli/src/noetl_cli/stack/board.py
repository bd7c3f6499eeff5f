"""The supervisor's view of its processes, published as the state file on every change."""

import logging

import psutil
from msgspec.structs import replace

from noetl_cli.failures import StackError
from noetl_cli.stack import state
from noetl_cli.stack.home import Home
from noetl_cli.stack.specs import ProcessSpec, Tier
from noetl_cli.stack.state import Phase, Process, ProcessPhase, State

_log = logging.getLogger("noetl.supervisor")


class Board:
    """Owns the state file for as long as the supervisor lives.

    On a full disk the file says what was true before; the processes are kept all the same.
    """

    def __init__(self, home: Home, first: State) -> None:
        self._home = home
        self._state = first
        self._is_behind = False
        state.write(home, first)

    @property
    def state(self) -> State:
        """What was last published."""
        return self._state

    def publish(self, **changes: object) -> None:
        """Change some fields and write the file."""
        self._state = replace(self._state, **changes)
        self._write()

    def catch_up(self) -> None:
        """Write what could not be written when it changed."""
        if self._is_behind:
            self._write()

    def enter(self, phase: Phase) -> None:
        """Move the stack as a whole."""
        self.publish(phase=phase)

    def started(self, spec: ProcessSpec, *, pid: int, restarts: int) -> None:
        """Record a process that runs but has not answered yet."""
        self._put(
            Process(
                name=spec.name,
                phase=ProcessPhase.STARTING,
                pid=pid,
                created=_created(pid),
                is_server=spec.tier is Tier.SERVER,
                stop_signal=int(spec.stop_signal),
                stop_timeout_s=spec.stop_timeout_s,
                restarts=restarts,
                port=spec.port,
                health_url=spec.health_url,
                log=str(self._home.log(spec.name)),
            )
        )

    def moved(self, name: str, phase: ProcessPhase) -> None:
        """Record that a process answers, or runs no more."""
        found = self._state.processes.get(name)
        if found is None:
            return
        runs = phase in {ProcessPhase.STARTING, ProcessPhase.READY}
        self._put(replace(found, phase=phase, pid=found.pid if runs else None))

    def _write(self) -> None:
        try:
            state.write(self._home, self._state)
        except StackError as error:
            if not self._is_behind:
                _log.warning("%s", error.message)
            self._is_behind = True
            return
        self._is_behind = False

    def _put(self, process: Process) -> None:
        self.publish(processes={**self._state.processes, process.name: process})


def _created(pid: int) -> float | None:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None
