"""Start, await and end a supervisor from the outside."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import psutil

from noetl_cli.errors import ExitCode, StackError
from noetl_cli.stack.home_folder import data_locations, options, stack_secrets, state
from noetl_cli.stack.home_folder.home import StackHome, hold_supervisor_lock, is_supervised
from noetl_cli.stack.home_folder.options import StackOptions
from noetl_cli.stack.home_folder.state import StackPhase, StackState
from noetl_cli.stack.processes import probes, process_spec
from noetl_cli.stack.servers import postgres
from noetl_cli.stack.supervision import process_keeper

POLL_S = 0.05

Tell = Callable[[StackState], None]


def start_stack(
    home: StackHome,
    stack_options: StackOptions,
    *,
    environ: Mapping[str, str],
    timeout_s: float,
    tell: Tell,
) -> tuple[StackState, bool]:
    """Start a supervisor, or attach to the one that runs; wait until all is ready."""
    _await_stop_end(home, timeout_s=timeout_s)
    if is_supervised(home):
        return await_ready(home, child=None, timeout_s=timeout_s, tell=tell), True
    state.find_state(home)
    data_locations.check_data_locations(home, stack_options)
    options.write_options(home, stack_options)
    handle = process_spec.open_log(home.log_file("supervisor"))
    try:
        child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            _build_supervisor_argv(home),
            cwd=home.root,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            start_new_session=True,
        )
    finally:
        os.close(handle)
    return await_ready(home, child=child, timeout_s=timeout_s, tell=tell), False


def _await_stop_end(home: StackHome, *, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while is_supervised(home) and time.monotonic() < until:
        stack_state = state.find_state(home)
        if stack_state is None or stack_state.phase is not StackPhase.STOPPING:
            return
        time.sleep(POLL_S)


def become_supervisor(
    home: StackHome, stack_options: StackOptions, *, environ: Mapping[str, str]
) -> NoReturn:
    """Turn this process into the supervisor, in the foreground."""
    with hold_supervisor_lock(home):
        data_locations.check_data_locations(home, stack_options)
        options.write_options(home, stack_options)
    argv = _build_supervisor_argv(home)
    os.execve(argv[0], argv, dict(environ))  # noqa: S606 - our own interpreter and module


def _build_supervisor_argv(home: StackHome) -> list[str]:
    return [sys.executable, "-m", "noetl_cli.stack", str(home.root)]


def await_ready(
    home: StackHome, *, child: subprocess.Popen[bytes] | None, timeout_s: float, tell: Tell
) -> StackState:
    """Follow the state file until the stack is ready."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        is_alive = child is None or child.poll() is None
        stack_state = state.find_state(home)
        if stack_state is not None and (child is None or stack_state.supervisor_pid == child.pid):
            tell(stack_state)
            if stack_state.phase is StackPhase.READY:
                return stack_state
            if stack_state.phase is StackPhase.FAILED:
                raise StackError(
                    stack_state.failure or "The stack did not start.",
                    way_out=stack_state.way_out or "",
                )
        if not is_alive and is_supervised(home):
            # Somebody else was faster: theirs is the one.
            child, is_alive = None, True
        if not is_alive or (child is None and not is_supervised(home)):
            raise _build_ended_early_error(home)
        time.sleep(POLL_S)
    raise StackError(
        f"The stack was not ready after {timeout_s:.0f} s.",
        way_out="It goes on starting: see `noetl doctor` and `noetl logs`.",
        exit_code=ExitCode.TIMEOUT,
    )


def _build_ended_early_error(home: StackHome) -> StackError:
    message = "The supervisor ended before the stack was ready."
    if not probes.has_room(home.root):
        # Its log could not be written either.
        return StackError(f"{message} The disk of {home.root} is full.", way_out="Free some space.")
    return StackError(message, way_out=f"Read {home.log_file('supervisor')}.")


def stop_stack(home: StackHome, *, timeout_s: float, tell: Tell, discards: bool = False) -> bool:
    """End the supervisor and all it started; tell whether anything ran.

    `discards` spares the servers what they would do for data that is deleted next.
    """
    stack_state = state.find_state(home)
    if not is_supervised(home):
        return bool(stack_state and process_keeper.end_orphans(stack_state))
    if stack_state is None:
        raise StackError(
            f"A supervisor runs in {home.root} but left no state.",
            way_out="Wait a second and try again.",
        )
    os.kill(stack_state.supervisor_pid, signal.SIGQUIT if discards else signal.SIGTERM)
    until = time.monotonic() + timeout_s
    while is_supervised(home):
        if time.monotonic() > until:
            raise StackError(
                f"The stack did not stop in {timeout_s:.0f} s.",
                way_out="Run `noetl down` again, or: "
                f"kill -9 {stack_state.supervisor_pid}; noetl down",
                exit_code=ExitCode.TIMEOUT,
            )
        tell(state.find_state(home) or stack_state)
        time.sleep(POLL_S)
    process_keeper.end_orphans(state.find_state(home) or stack_state)
    return True


def purge_data(home: StackHome) -> None:
    """Delete the data of a stopped stack, and nothing that is not its own."""
    for elsewhere in _list_folders_outside(home):
        is_folder = elsewhere.is_dir() and not elsewhere.is_symlink()
        if is_folder and elsewhere.stat().st_uid == os.geteuid():
            shutil.rmtree(elsewhere, ignore_errors=True)
    for name in (
        "postgres",
        "nats",
        "seaweedfs",
        "payloads",
        "files",
        "logs",
        "hold",
        "local-runs",
    ):
        shutil.rmtree(home.root / name, ignore_errors=True)
    for path in (
        home.secrets_file,
        home.token_file,
        home.options_file,
        home.state_file,
        home.data_locations_file,
        home.lock_file,
    ):
        path.unlink(missing_ok=True)
    if home.root.is_dir() and not any(home.root.iterdir()):
        home.root.rmdir()


def _list_folders_outside(home: StackHome) -> set[Path]:
    """List where the cluster may be outside of its home; a start that failed early told nothing."""
    stack_state = state.find_state(home)
    folders = set()
    if stack_state is not None and stack_state.postgres_folder is not None:
        folders.add(postgres.find_folder_outside(home.root, Path(stack_state.postgres_folder)))
    keyring = stack_secrets.find_keyring(home)
    if keyring is not None:
        named = postgres.name_fallback_folder(home.root, password=keyring.postgres_superuser)
        folders.add(named)
    return {folder for folder in folders if folder is not None}


def find_listener(port: int) -> str | None:
    """Name the process that listens on a loopback port, as far as we may see it."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            return _name_process(connection.pid)
    return None


def _name_process(pid: int | None) -> str:
    if pid is None:
        return "a process of another user"
    try:
        return f"{psutil.Process(pid).name()} (process {pid})"
    except psutil.NoSuchProcess:
        return f"process {pid}"


def is_stack_folder(root: Path) -> bool:
    """Tell whether this folder was made by a stack."""
    return any((root / name).exists() for name in ("state.json", "secrets.json", "options.json"))
