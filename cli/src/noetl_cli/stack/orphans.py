"""End what a supervisor left behind that was killed itself."""

import signal

import psutil

from noetl_cli.stack.state import Process, State

CLOCK_SLACK_S = 1.0
KILLED_TIMEOUT_S = 5.0


def end(state: State) -> list[str]:
    """Stop recorded processes that still run: services first, then servers; name them."""
    left = {name: found for name, p in state.processes.items() if (found := alive(p))}
    for is_server in (False, True):
        names = [name for name in left if state.processes[name].is_server is is_server]
        for name in names:
            _signal(left[name], state.processes[name].stop_signal)
        for name in names:
            _await_end(left[name], patience_s=state.processes[name].stop_timeout_s)
    return list(left)


def alive(process: Process) -> psutil.Process | None:
    """Find a recorded process, unless its number belongs to another one by now."""
    if process.pid is None:
        return None
    try:
        found = psutil.Process(process.pid)
        is_same = abs(found.create_time() - (process.created or 0)) < CLOCK_SLACK_S
        return found if is_same and found.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _await_end(process: psutil.Process, *, patience_s: float) -> None:
    _, stubborn = psutil.wait_procs([process], timeout=patience_s)
    if stubborn:
        _signal(process, signal.SIGKILL)
        psutil.wait_procs(stubborn, timeout=KILLED_TIMEOUT_S)


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
