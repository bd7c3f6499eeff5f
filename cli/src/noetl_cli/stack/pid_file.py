"""The file by which a PostgreSQL server keeps others off its data."""

import signal
from pathlib import Path

import psutil

from noetl_cli.failures import StackError

NAME = "postmaster.pid"
ORPHAN_TIMEOUT_S = 20.0


def clear_stale(data: Path) -> None:
    """Remove the file if no server runs on the data, and end a server that nobody keeps.

    The number in it may belong to somebody else by now, and a crash may have left it empty: at
    both PostgreSQL would refuse to start. So the server is looked for, not the number.
    """
    file = data / NAME
    if not file.exists():
        return
    servers = _servers_on(data)
    for server in servers:
        server.send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs(servers, timeout=ORPHAN_TIMEOUT_S)
    if alive:
        raise StackError(
            f"A PostgreSQL server (process {alive[0].pid}) still runs on {data}.",
            way_out=f"Stop it with: kill -INT {alive[0].pid}",
        )
    file.unlink(missing_ok=True)


def _servers_on(data: Path) -> list[psutil.Process]:
    """List the servers that were started on the data; their own children name no folder."""
    found = []
    for process in psutil.process_iter():
        try:
            argv = process.cmdline()
        except psutil.Error:
            continue
        if argv and Path(argv[0]).name == "postgres" and str(data) in argv[1:]:
            found.append(process)
    return found
