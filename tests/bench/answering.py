"""W1 beside what the servers and clients take for it alone: the same exchange, messages and rows, no engine.

For the floor a process is asked by HTTP, through the framework and the server of the planner: it
commits as many rows as the engine does when it accepts an execution, hands one step over as in
`handover`, commits what became of it, and answers. The client is the one that W1 has.
"""

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop
from litestar import Litestar, post
from tests.bench.client import Client, KeptConnection
from tests.bench.handover import Giver, working_giver
from tests.bench.latency import ONE, ROUNDS, SINGLES
from tests.bench.page_workloads import told
from tests.bench.spread import share, spread
from tests.support.servers import nats_server, postgres_server
from tests.support.stack import Stack

from noetl_planner.api.server import serve_api

# playbook.initialized, step.enter, command.issued; then started, completed, call.done, step.exit,
# playbook.completed.
FIRST_EVENTS, LAST_EVENTS = 3, 5
ASKED = {"path": "one", "workload": {}}


def measure(stack: Stack) -> dict[str, Any]:
    """Measure both in turn; the floor on servers of its own that keep what they are told."""
    client = Client(stack)
    client.register(ONE)
    with (
        tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder,
        postgres_server(Path(folder), is_durable=True) as server,
        nats_server(Path(folder)) as broker,
        _front(asyncio.run(server.create_database("answering")), broker.url) as url,
    ):
        connection = KeptConnection(url)
        ways: dict[str, Callable[[], float]] = {
            "floor": lambda: _asked(connection),
            "engine": lambda: client.run("one"),
        }
        found: dict[str, list[list[float]]] = {name: [] for name in ways}
        for turn in range(1 + ROUNDS):
            for name, run in ways.items():
                series = [run() * 1000 for _ in range(SINGLES)]
                # What is warm is told of.
                found[name] += [series] if turn else []
    return {"units": SINGLES, "rounds": ROUNDS, **{name: _told(of) for name, of in found.items()}}


def _told(series: list[list[float]]) -> dict[str, Any]:
    return {
        "p50_ms": spread([share(one, 0.5) for one in series]),
        "p95_ms": spread([share(one, 0.95) for one in series]),
    }


def section(found: dict[str, Any]) -> str:
    """Write the figures for people."""
    rows = "\n".join(
        f"| {about} | {told(found[name]['p50_ms'])} / {told(found[name]['p95_ms'])} ms |"
        for name, about in (("floor", "no engine"), ("engine", "an execution of W1"))
    )
    ratio = found["engine"]["p50_ms"]["median"] / found["floor"]["p50_ms"]["median"]
    return f"""## W1 beside the same exchange, messages and rows with no engine

Two processes that decide, check, project and repeat nothing; the first is asked over HTTP through the planner's server
and framework, and answers at the end. Both are asked in turn, {found["rounds"]} times {found["units"]}.

| what | p50 / p95 |
|---|---:|
{rows}

**Ratio** of the medians: {ratio:.1f}.
"""


def _asked(connection: KeptConnection) -> float:
    """Return the seconds from the request to its answer."""
    began = time.perf_counter()
    answer = connection.ask("/api/execute", ASKED)
    assert answer["status"] == "COMPLETED", answer
    return time.perf_counter() - began


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
        await serve_api(_app(giver), host="127.0.0.1", port=0, stop=stop, started=_say)


def _say(port: int) -> None:
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
