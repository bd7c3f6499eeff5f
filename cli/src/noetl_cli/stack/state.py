"""What runs at the moment, as one file that the supervisor alone writes."""

from enum import StrEnum

import msgspec
from msgspec import Struct

from noetl_cli.failures import StackError
from noetl_cli.stack.home import Home, write_privately

FORMAT = 1


class Phase(StrEnum):
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


class Process(Struct, frozen=True, kw_only=True):
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


class State(Struct, frozen=True, kw_only=True):
    """One stack as it stands."""

    format: int = FORMAT
    phase: Phase
    home: str
    supervisor_pid: int
    supervisor_created: float
    started_at: str
    ports: dict[str, int] = {}
    urls: dict[str, str] = {}
    versions: dict[str, str] = {}
    processes: dict[str, Process] = {}
    # Outside `home` when PostgreSQL's own user cannot enter that.
    postgres_folder: str | None = None
    failure: str | None = None
    way_out: str | None = None


def find(home: Home) -> State | None:
    """Read the state, or nothing when no stack was ever started here."""
    try:
        content = home.state.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StackError(
            f"{home.state} cannot be read: {error.strerror}.",
            way_out="Run noetl as the user who started the stack, or choose another --dir.",
        ) from error
    try:
        return msgspec.json.decode(content, type=State)
    except msgspec.MsgspecError as error:
        raise StackError(
            f"{home.state} is damaged: {error}.",
            way_out=f"Remove it and run `noetl up` again; no data is in it: rm {home.state}",
        ) from error


def write(home: Home, state: State) -> None:
    """Replace the state in one step."""
    write_privately(home.state, msgspec.json.format(msgspec.json.encode(state)))
