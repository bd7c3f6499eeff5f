"""How long small things take and what they cost the planner: W1, W2, W3, many at once."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from rich.console import Console
from rich.progress import track
from tests.bench.cpu import spent
from tests.support.stack import Stack

CHAIN_STEPS = 100
SMALL_EXECUTIONS = 1_000
LOOP_ITEMS = (1_000, 10_000)
TERMINAL = {"COMPLETED", "FAILED", "CANCELLED"}
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"
ONE = (
    HEAD
    + "metadata: {name: one}\nworkflow: [{step: one, tool: {kind: python, code: 'result = 1'}}]\n"
)
SMALL = HEAD + "metadata: {name: small}\nworkflow: [{step: one, tool: {kind: noop}}]\n"
LOOP = (
    HEAD
    + """metadata: {name: loop}
workload: {n: 1000}
workflow:
  - step: each
    loop: {in: "{{ workload.n }}", iterator: i, spec: {mode: parallel, max_in_flight: 100}}
    tool: {kind: noop, result: "{{ iter.i * 2 }}"}
"""
)

console = Console()


def chain(length: int) -> str:
    """Write a playbook of so many no-op steps in a row."""
    steps = [
        f"  - {{step: s{n}, tool: {{kind: noop}}, next: {{arcs: [{{step: s{n + 1}}}]}}}}\n"
        for n in range(length - 1)
    ]
    last = f"  - {{step: s{length - 1}, tool: {{kind: noop}}}}\n"
    return f"{HEAD}metadata: {{name: chain}}\nworkflow:\n{''.join(steps)}{last}"


class Client:
    """The front door, kept open."""

    def __init__(self, api: str) -> None:
        self.http = httpx.Client(base_url=api, timeout=600)

    def register(self, text: str) -> None:
        """Register a playbook."""
        answer = self.http.post(
            "/api/catalog/register", content=text, headers={"Content-Type": "text/yaml"}
        )
        answer.raise_for_status()

    def submit(self, path: str, **workload: Any) -> str:
        """Ask for a run; return the execution's id."""
        answer = self.http.post("/api/execute", json={"path": path, "workload": workload})
        answer.raise_for_status()
        execution_id: str = answer.json()["execution_id"]
        return execution_id

    def run(self, path: str, **workload: Any) -> float:
        """Run a playbook; return the seconds from submission to the end that the client sees."""
        started = time.perf_counter()
        url = f"/api/executions/{self.submit(path, **workload)}/stream"
        with self.http.stream("GET", url) as stream:
            lines = list(stream.iter_lines())
        seconds = time.perf_counter() - started
        assert any("playbook.completed" in line for line in lines), lines[-5:]
        return seconds

    def wait(self, execution_id: str) -> None:
        """Wait for an execution's end, which must be a good one."""
        while True:
            status = self.http.get(f"/api/executions/{execution_id}/status").json()["status"]
            if status in TERMINAL:
                assert status == "COMPLETED", (execution_id, status)
                return
            time.sleep(0.05)


def measure(stack: Stack) -> dict[str, Any]:
    """Measure each in turn, warm."""
    client = Client(stack.url("api"))
    for text in (ONE, SMALL, chain(CHAIN_STEPS), LOOP):
        client.register(text)
    client.run("one")
    found = {
        "single_step": _single_step(client),
        "chain": _chain(stack, client),
        "loops": [_loop(stack, client, items) for items in LOOP_ITEMS],
        "small_executions": _small_executions(stack, client),
    }
    console.print(found)
    return found


def _single_step(client: Client) -> dict[str, float]:
    singles = sorted(client.run("one") * 1000 for _ in range(50))
    return {
        "p50_ms": round(statistics.median(singles), 1),
        "p95_ms": round(singles[int(len(singles) * 0.95)], 1),
    }


def _chain(stack: Stack, client: Client) -> dict[str, float]:
    with _planner(stack) as planner_cpu_s:
        seconds = [client.run("chain") for _ in range(5)]
    return {
        "steps": CHAIN_STEPS,
        "steps_per_s": round(CHAIN_STEPS / statistics.median(seconds), 1),
        "planner_cpu_us_per_step": _each_us(planner_cpu_s(), CHAIN_STEPS * len(seconds)),
    }


def _loop(stack: Stack, client: Client, items: int) -> dict[str, float]:
    with _planner(stack) as planner_cpu_s:
        seconds = [client.run("loop", n=items) for _ in range(3)]
    return {
        "items": items,
        "items_per_s": round(items / statistics.median(seconds), 1),
        "planner_cpu_us_per_item": _each_us(planner_cpu_s(), items * len(seconds)),
    }


def _small_executions(stack: Stack, client: Client) -> dict[str, float]:
    """Submit many one after another, all of them running at once, and wait for the last."""
    with _planner(stack) as planner_cpu_s:
        started = time.perf_counter()
        asked = [client.submit("small") for _ in track(range(SMALL_EXECUTIONS), "small")]
        for execution_id in asked:
            client.wait(execution_id)
        seconds = time.perf_counter() - started
    return {
        "executions": SMALL_EXECUTIONS,
        "executions_per_s": round(SMALL_EXECUTIONS / seconds, 1),
        "planner_cpu_us_per_execution": _each_us(planner_cpu_s(), SMALL_EXECUTIONS),
    }


@contextmanager
def _planner(stack: Stack) -> Iterator[Callable[[], float]]:
    """Tell how much CPU the planners, with the API in them, spent since the block began."""
    before = spent(stack).get("planner", 0.0)
    yield lambda: spent(stack).get("planner", 0.0) - before


def _each_us(cpu_s: float, count: int) -> float:
    return round(cpu_s / count * 1_000_000, 1)
