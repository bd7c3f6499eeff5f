"""What runs at the moment, as one file that the supervisor alone writes."""

import logging
from enum import StrEnum

import msgspec
import psutil
from msgspec import Struct
from msgspec.structs import replace

from noetl_cli.errors import StackError
from noetl_cli.stack.home_folder.home import StackHome, write_privately
from noetl_cli.stack.processes.process_spec import ProcessSpec, ProcessTier

FORMAT = 1


class StackPhase(StrEnum):
    """How far the stack as a whole is."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class ProcessPhase(StrEnum):
    """How far one process is."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class ProcessState(Struct, frozen=True, kw_only=True):
    """One process; `created` with `pid` tells it from a later owner of the same number."""

    name: str
    phase: ProcessPhase
    pid: int | None = None
    created: float | None = None
    is_server: bool
    stop_signal: int
    stop_timeout_s: float
    restarts: int = 0
    port: int | None = None
    health_url: str | None = None
    log: str = ""


class StackState(Struct, frozen=True, kw_only=True):
    """One stack as it stands."""

    format: int = FORMAT
    phase: StackPhase
    home: str
    supervisor_pid: int
    supervisor_created: float
    started_at: str
    ports: dict[str, int] = {}
    urls: dict[str, str] = {}
    versions: dict[str, str] = {}
    processes: dict[str, ProcessState] = {}
    # Outside `home` when PostgreSQL's own user cannot enter that.
    postgres_folder: str | None = None
    failure: str | None = None
    way_out: str | None = None


def find_state(home: StackHome) -> StackState | None:
    """Read the state, or nothing when no stack was ever started here."""
    try:
        content = home.state_file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StackError(
            f"{home.state_file} cannot be read: {error.strerror}.",
            way_out="Run noetl as the user who started the stack, or choose another --dir.",
        ) from error
    try:
        return msgspec.json.decode(content, type=StackState)
    except msgspec.MsgspecError as error:
        raise StackError(
            f"{home.state_file} is damaged: {error}.",
            way_out=f"Remove it and run `noetl up` again; no data is in it: rm {home.state_file}",
        ) from error


def write_state(home: StackHome, state: StackState) -> None:
    """Replace the state in one step."""
    write_privately(home.state_file, msgspec.json.format(msgspec.json.encode(state)))


_log = logging.getLogger("noetl.supervisor")


class StateBoard:
    """Owns the state file for as long as the supervisor lives.

    On a full disk the file says what was true before; the processes are kept all the same.
    """

    def __init__(self, home: StackHome, first: StackState) -> None:
        self._home = home
        self._state = first
        self._is_behind = False
        write_state(home, first)

    @property
    def current_state(self) -> StackState:
        """What was last published."""
        return self._state

    def publish_changes(self, **changes: object) -> None:
        """Change some fields and write the file."""
        self._state = replace(self._state, **changes)
        self._write_state()

    def write_missed(self) -> None:
        """Write what could not be written when it changed."""
        if self._is_behind:
            self._write_state()

    def enter_phase(self, phase: StackPhase) -> None:
        """Move the stack as a whole."""
        self.publish_changes(phase=phase)

    def record_start(self, spec: ProcessSpec, *, pid: int, restarts: int) -> None:
        """Record a process that runs but has not answered yet."""
        self._put_process(
            ProcessState(
                name=spec.name,
                phase=ProcessPhase.STARTING,
                pid=pid,
                created=_read_creation_time(pid),
                is_server=spec.tier is ProcessTier.SERVER,
                stop_signal=int(spec.stop_signal),
                stop_timeout_s=spec.stop_timeout_s,
                restarts=restarts,
                port=spec.port,
                health_url=spec.health_url,
                log=str(self._home.log_file(spec.name)),
            )
        )

    def record_phase(self, name: str, phase: ProcessPhase) -> None:
        """Record that a process answers, or runs no more."""
        process = self._state.processes.get(name)
        if process is None:
            return
        runs = phase in {ProcessPhase.STARTING, ProcessPhase.READY}
        self._put_process(replace(process, phase=phase, pid=process.pid if runs else None))

    def _write_state(self) -> None:
        try:
            write_state(self._home, self._state)
        except StackError as error:
            if not self._is_behind:
                _log.warning("%s", error.message)
            self._is_behind = True
            return
        self._is_behind = False

    def _put_process(self, process: ProcessState) -> None:
        self.publish_changes(processes={**self._state.processes, process.name: process})


def _read_creation_time(pid: int) -> float | None:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None
