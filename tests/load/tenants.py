"""Two tenants on one stack: one floods it, the other runs small executions one after another."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
from msgspec import Struct
from rich.console import Console
from tests.bench.client import HEAD
from tests.bench.spread import share
from tests.load import telling
from tests.support.servers import wait_until
from tests.support.stack import Stack, running_stack

from noetl_cli.stack.processes import loopback

QUIET, NOISY = "default", "flood"
FLOOD, FLOOD_ITEMS = 2_000, 20
# The quiet one begins when so many of the flood's executions were asked for.
AHEAD = 200
SMALL, CALLERS, WORKERS = 50, 8, 2
PATIENCE_S = 3_600.0
READY_S = 120.0
# A quota under which the noisy tenant leaves a processor to the others.
BOUNDED_RUNNING = 2
# Processes that only compute, beside which the quiet tenant is measured, too.
BURNERS = (1, 2)
# Sooner than the refusal says: a tenant that floods does not wait for long.
REFUSED_WAIT_S = 0.5
SHARES = [
    word
    for service in ("MESSAGING", "REAPER", "PLANNER", "WORKER")
    for word in ("--set", f"{service}_TENANTS={QUIET},{NOISY}")
]
ONE = f"""{HEAD}metadata: {{name: small, path: load/small}}
workflow:
  - step: one
    tool: {{kind: noop, result: 1}}
    next: {{arcs: [{{step: two}}]}}
  - step: two
    tool: {{kind: python, input: {{n: "{{{{ one }}}}"}}, code: "return n + 1"}}
"""
MANY = f"""{HEAD}metadata: {{name: flood, path: load/flood}}
workload: {{n: {FLOOD_ITEMS}}}
workflow:
  - step: each
    loop: {{in: "{{{{ workload.n }}}}", iterator: i, spec: {{mode: parallel, max_in_flight: {FLOOD_ITEMS}}}}}
    tool: {{kind: noop, result: "{{{{ iter.i }}}}"}}
    set: {{ctx.total: "{{{{ each.results | sum }}}}"}}
"""
_NOISY = """
SELECT count(*) FILTER (WHERE status IN ('PENDING', 'RUNNING')) AS open,
       count(*) FILTER (WHERE status = 'COMPLETED'
                        AND (variables->>'total')::int = $2) AS right
FROM noetl.execution WHERE tenant_id = $1
"""
console = Console()


class Size(Struct, frozen=True, kw_only=True):
    """How much of each."""

    flood: int = FLOOD
    small: int = SMALL


def run(folder: Path, size: Size) -> dict[str, Any]:
    """Measure all ways: tenants that share every queue, with shares, and with a quota too."""
    return {
        "flood": size.flood,
        "items": FLOOD_ITEMS,
        "small": size.small,
        "together": _measured(folder / "together", size, []),
        "shares": _measured(folder / "shares", size, SHARES),
        "bounded": _measured(folder / "bounded", size, SHARES, running_max=BOUNDED_RUNNING),
        "running_max": BOUNDED_RUNNING,
        **_measure_bounds(folder / "bounds", size),
    }


def _measure_bounds(folder: Path, size: Size) -> dict[str, Any]:
    """Measure the quiet tenant beside processes that only compute, by how many there are.

    No way of sharing gets below what one of them costs where it takes half of the processors.
    """
    folder.mkdir()
    found = {}
    load_before = telling.load()
    with (
        running_stack(folder / "stack", "--workers", str(WORKERS)) as stack,
        _open_client(stack, stack.url("api")) as quiet,
    ):
        _register(quiet, ONE)
        _run(quiet)
        alone = _told([_run(quiet) for _ in range(size.small)])
        for count in BURNERS:
            with _burn_processors(count):
                beside = _told([_run(quiet) for _ in range(size.small)])
            load = [load_before, telling.load()]
            found[f"burning{count}"] = {"alone": alone, "beside": beside, "load": load}
    console.print(found)
    return found


@contextmanager
def _burn_processors(count: int) -> Iterator[None]:
    """Run so many processes that compute without a pause while the block runs."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def _measured(
    folder: Path, size: Size, options: Sequence[str], *, running_max: int | None = None
) -> dict[str, Any]:
    folder.mkdir()
    load_before = telling.load()
    shared = folder / "shared"
    shared.mkdir()
    options = (
        *("--workers", str(WORKERS), *options),
        *("--set", f"WORKER_SHARED_DIRECTORY={shared}"),
    )
    with (
        running_stack(folder / "stack", *options) as stack,
        _api_of(stack, folder) as noisy_url,
        _open_client(stack, stack.url("api")) as quiet,
        _open_client(stack, noisy_url) as noisy,
    ):
        _register(quiet, ONE)
        _register(noisy, MANY)
        if running_max is not None:
            answer = quiet.patch(f"/api/quotas/{NOISY}", json={"running_max": running_max})
            assert answer.is_success, answer.text
        _run(quiet)
        alone = [_run(quiet) for _ in range(size.small)]
        with ThreadPoolExecutor(CALLERS) as threads:
            flood = Flood(noisy, size.flood)
            callers = [threads.submit(flood.ask_until_over) for _ in range(CALLERS)]
            # Where it is held back, the flood is on as soon as it is.
            ahead = min(AHEAD, size.flood) if running_max is None else running_max + 1
            wait_until(lambda: flood.asked >= ahead, timeout_s=PATIENCE_S, what="the flood is on")
            beside = [_run(quiet) for _ in range(size.small)]
            left = asyncio.run(_noisy(stack.url("postgres")))["open"]
            asked_then, refused_then = flood.asked, flood.refused
            if running_max is not None:
                flood.stop()
            for caller in callers:
                caller.result()
        wait_until(
            lambda: _ended(stack) >= flood.accepted,
            timeout_s=PATIENCE_S,
            what="the flood has ended",
        )
    found = {
        "alone": _told(alone),
        "beside": _told(beside),
        "flood_asked_meanwhile": asked_then,
        "flood_refused_meanwhile": refused_then,
        "flood_open_at_the_end": left,
        "load": [load_before, telling.load()],
    }
    console.print(found)
    return found


class Flood:
    """What the noisy tenant asks for, with as many threads as call `ask_until_over`."""

    def __init__(self, api: httpx.Client, count: int) -> None:
        self._api = api
        self._count = count
        self._guard = threading.Lock()
        self._stopped = threading.Event()
        self.asked = self.accepted = self.refused = 0

    def stop(self) -> None:
        """Ask for no more."""
        self._stopped.set()

    def ask_until_over(self) -> None:
        """Ask for executions until all were accepted; one that is refused is asked for again."""
        while self._take_number() and not self._stopped.is_set():
            answer = self._ask()
            while answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
                self._note_refusal()
                if self._stopped.wait(REFUSED_WAIT_S):
                    return
                answer = self._ask()
            assert answer.is_success, answer.text
            with self._guard:
                self.accepted += 1

    def _ask(self) -> httpx.Response:
        return self._api.post("/api/execute", json={"path": "load/flood"})

    def _take_number(self) -> bool:
        with self._guard:
            self.asked += 1
            return self.asked <= self._count

    def _note_refusal(self) -> None:
        with self._guard:
            self.refused += 1


def _told(seconds: Sequence[float]) -> dict[str, int]:
    return {
        name: round(share(seconds, part) * 1000) for name, part in (("p50", 0.5), ("p95", 0.95))
    } | {"most": round(max(seconds) * 1000)}


@contextmanager
def _api_of(stack: Stack, folder: Path) -> Iterator[str]:
    """Run one more planner, whose API serves the noisy tenant; return its address."""
    planner = psutil.Process(stack.pid("planner-1"))
    http, health = loopback.choose_ports(["http", "health"], before={}).values()
    own = {"TENANT_ID": NOISY, "HTTP_PORT": http, "HEALTH_PORT": health, "INSTANCE": "planner-2"}
    environ = planner.environ() | {f"NOETL_PLANNER_{name}": str(item) for name, item in own.items()}
    with (
        (folder / "planner-2.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "noetl_planner"], env=environ, stdout=log, stderr=log
        ) as process,
    ):
        try:
            ready = f"http://{loopback.LOOPBACK}:{health}/readyz"
            wait_until(lambda: _answers(ready), timeout_s=READY_S, what="the other API answers")
            yield f"http://{loopback.LOOPBACK}:{http}"
        finally:
            process.terminate()
            process.wait(30)


def _open_client(stack: Stack, url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers=stack.owner_headers, timeout=PATIENCE_S)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def _register(api: httpx.Client, playbook: str) -> None:
    answer = api.post("/api/catalog/register", content=playbook)
    assert answer.is_success, answer.text


def _run(api: httpx.Client) -> float:
    """Run a small execution; return the seconds until the client sees its end."""
    began = time.perf_counter()
    answer = api.post("/api/execute", json={"path": "load/small"})
    assert answer.is_success, answer.text
    url = f"/api/executions/{answer.json()['execution_id']}/stream"
    with api.stream("GET", url) as stream:
        lines = list(stream.iter_lines())
    seconds = time.perf_counter() - began
    assert any("playbook.completed" in line for line in lines), lines[-5:]
    return seconds


def _ended(stack: Stack) -> int:
    time.sleep(1)
    return asyncio.run(_noisy(stack.url("postgres")))["right"]


async def _noisy(dsn: str) -> dict[str, int]:
    connection = await asyncpg.connect(dsn)
    try:
        row = await connection.fetchrow(_NOISY, NOISY, sum(range(FLOOD_ITEMS)))
    finally:
        await connection.close()
    assert row is not None, "counts are one row"
    return dict(row)


def wrong(found: dict[str, Any]) -> list[str]:
    """Name a way in which the quiet tenant was not served while the other one still flooded."""
    wrong_ways = [
        f"{way}: the flood had ended before the quiet tenant had"
        for way in ("together", "shares")
        if found[way]["flood_open_at_the_end"] == 0
    ]
    if found["bounded"]["flood_refused_meanwhile"] == 0:
        wrong_ways.append("bounded: nothing of the flood was refused")
    return wrong_ways
