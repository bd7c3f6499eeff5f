"""What of W1 is the servers' and the clients' own: the same exchange, messages and rows, no engine.

A process is asked by HTTP, through the framework and the server of the planner: it commits as many
rows as the engine does when it accepts an execution, hands one step over as in `handover`, commits
what became of it, and answers. The client is the one that W1 has.
"""

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvloop
from litestar import Litestar, post
from tests.bench.handover import Giver, working_giver
from tests.bench.spread import share, spread
from tests.support.servers import nats_server, postgres_server

from noetl_planner.http.server import serve

SINGLES, ROUNDS = 50, 5
# playbook.initialized, step.enter, command.issued; then started, completed, call.done, step.exit,
# playbook.completed.
FIRST_EVENTS, LAST_EVENTS = 3, 5
ASKED = {"path": "one", "workload": {}}


def measure() -> dict[str, Any]:
    """Measure on servers of its own that keep what they are told."""
    with (
        tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder,
        postgres_server(Path(folder), is_durable=True) as server,
        nats_server(Path(folder)) as broker,
        _front(asyncio.run(server.create_database("answering")), broker.url) as url,
        httpx.Client(base_url=url) as http,
    ):
        _series(http)
        rounds = [_series(http) for _ in range(ROUNDS)]
    return {
        "execution_p50_ms": spread([share(one, 0.5) for one in rounds]),
        "execution_p95_ms": spread([share(one, 0.95) for one in rounds]),
    }


def _series(http: httpx.Client) -> list[float]:
    return [_asked(http) for _ in range(SINGLES)]


def _asked(http: httpx.Client) -> float:
    """Return the milliseconds from the request to its answer."""
    began = time.perf_counter()
    answer = http.post("/api/execute", json=ASKED).raise_for_status()
    assert answer.json()["status"] == "COMPLETED", answer.text
    return (time.perf_counter() - began) * 1000


@contextmanager
def _front(dsn: str, url: str) -> Iterator[str]:
    command = [sys.executable, "-m", __name__, dsn, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own command line
        assert process.stdout is not None
        try:
            # The server logs a line of its own before.
            yield next(line.strip() for line in process.stdout if line.startswith("http"))
        finally:
            process.terminate()
            process.wait(10)


async def _serve(dsn: str, url: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with working_giver(dsn, url) as giver:
        await serve(_app(giver), host="127.0.0.1", port=0, stop=stop, started=_told)


def _told(port: int) -> None:
    sys.stdout.write(f"http://127.0.0.1:{port}\n")
    sys.stdout.flush()


def _app(giver: Giver) -> Litestar:
    @post("/api/execute")
    async def execute(data: dict[str, Any]) -> dict[str, Any]:
        await giver.run(first=FIRST_EVENTS, last=LAST_EVENTS)
        return {"status": "COMPLETED", "path": data["path"]}

    return Litestar([execute], openapi_config=None)


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], sys.argv[2]))
