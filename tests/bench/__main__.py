"""Measure against the raw floor, in one run on one machine; writes docs/benchmarks.{json,md}."""

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
from rich.console import Console
from rich.table import Table
from tests.support import pft
from tests.support.pft import Fixture
from tests.support.stack import Stack, running_stack

DOCS = Path("docs")
UNSTEADY_SHARE = 0.15
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"
ONE = (
    HEAD
    + "metadata: {name: one}\nworkflow: [{step: one, tool: {kind: python, code: 'result = 1'}}]\n"
)
LOOP = (
    HEAD
    + """metadata: {name: loop}
workload: {n: 1000}
workflow:
  - step: each
    loop: {in: "{{ workload.n }}", iterator: i, spec: {mode: parallel, max_in_flight: 100}}
    tool: {kind: noop}
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
        self.http = httpx.Client(base_url=api, timeout=120)

    def register(self, text: str) -> None:
        """Register a playbook."""
        answer = self.http.post(
            "/api/catalog/register", content=text, headers={"Content-Type": "text/yaml"}
        )
        answer.raise_for_status()

    def run(self, path: str) -> float:
        """Run a playbook; return the seconds from submission to the end that the client sees."""
        started = time.perf_counter()
        answer = self.http.post("/api/execute", json={"path": path})
        answer.raise_for_status()
        url = f"/api/executions/{answer.json()['execution_id']}/stream"
        with self.http.stream("GET", url) as stream:
            lines = list(stream.iter_lines())
        seconds = time.perf_counter() - started
        assert any("playbook.completed" in line for line in lines), lines[-5:]
        return seconds


def main() -> None:
    """Run the series and write the report."""
    asked = _arguments()
    with tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder:
        root = Path(folder)
        with running_stack(root / "stack", "--workers", str(asked.workers)) as stack:
            pft.prepare(stack)
            report = {
                "machine": _machine(),
                "scale": {"facilities": asked.facilities, "patients": asked.patients},
                "latency": _latency(stack),
                "pft_a": list(_pft_rounds(stack, root, asked)),
            }
    report["efficiency"] = _efficiency(report["pft_a"])
    _write(report, asked)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facilities", type=int, default=1)
    parser.add_argument("--patients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def _machine() -> dict[str, Any]:
    return {
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def _latency(stack: Stack) -> dict[str, Any]:
    client = Client(stack.url("api"))
    for text in (ONE, chain(100), LOOP):
        client.register(text)
    client.run("one")
    singles = sorted(client.run("one") * 1000 for _ in range(50))
    chains = [client.run("chain") for _ in range(3)]
    loops = [client.run("loop") for _ in range(3)]
    found = {
        "single_step_p50_ms": round(statistics.median(singles), 1),
        "single_step_p95_ms": round(singles[int(len(singles) * 0.95)], 1),
        "chain_100_steps_per_s": round(100 / statistics.median(chains), 1),
        "parallel_1000_items_per_s": round(1000 / statistics.median(loops), 1),
    }
    console.print(found)
    return found


def _pft_rounds(stack: Stack, root: Path, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with pft.fixture(root) as served:
        for turn in range(asked.rounds):
            pair: list[Callable[[Stack, Fixture, argparse.Namespace], dict[str, Any]]]
            pair = [_floor, _engine] if turn % 2 == 0 else [_engine, _floor]
            for measure in pair:
                found = measure(stack, served, asked)
                console.print(found)
                yield found


def _engine(stack: Stack, served: Fixture, asked: argparse.Namespace) -> dict[str, Any]:
    before = _cpu(stack, served)
    run = pft.start(stack, served, facilities=asked.facilities, patients=asked.patients)
    run.wait(patience_s=1800)
    spent = {name: round(cpu - before[name], 1) for name, cpu in _cpu(stack, served).items()}
    run.verify()
    requests = served.summary()["requests"]
    return {
        "who": "engine",
        "requests": requests,
        "seconds": round(run.seconds, 2),
        "requests_per_s": round(requests / run.seconds),
        "cpu_s": spent,
    }


def _floor(stack: Stack, served: Fixture, asked: argparse.Namespace) -> dict[str, Any]:
    served.begin()
    done = subprocess.run(  # noqa: S603 - our own command line
        [
            *(sys.executable, "-m", "noetl_pft", "floor", "--api", served.api),
            *("--dsn", stack.url("target")),
            *("--facilities", str(asked.facilities), "--patients", str(asked.patients)),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    told = msgspec.json.decode(done.stdout.strip().splitlines()[-1])
    return {
        "who": "floor",
        "requests": told["requests"],
        "seconds": round(told["seconds"], 2),
        "requests_per_s": round(told["requests_per_second"]),
    }


def _cpu(stack: Stack, served: Fixture) -> dict[str, float]:
    """CPU seconds so far, by part; a process's children, also ended ones, count with it."""
    state = stack.state["processes"]
    pids = {name: found["pid"] for name, found in state.items() if found["pid"]}
    pids["fixture"] = served.pid
    spent: dict[str, float] = {}
    for name, pid in pids.items():
        part = name.rpartition("-")[0] or name
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            times = each.cpu_times()
            ended = times.children_user + times.children_system
            spent[part] = spent.get(part, 0.0) + times.user + times.system + ended
    return spent


def _efficiency(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = {
        who: [one["seconds"] for one in rounds if one["who"] == who] for who in ("floor", "engine")
    }
    floors = seconds["floor"]
    return {
        "median": round(statistics.median(floors) / statistics.median(seconds["engine"]), 3),
        "least": round(min(floors) / max(seconds["engine"]), 3),
        "most": round(max(floors) / min(seconds["engine"]), 3),
        "is_steady": (max(floors) - min(floors)) / min(floors) <= UNSTEADY_SHARE,
    }


def _write(report: dict[str, Any], asked: argparse.Namespace) -> None:
    DOCS.mkdir(exist_ok=True)
    (DOCS / "benchmarks.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    (DOCS / "benchmarks.md").write_text(_page(report, asked))
    table = Table(title="PFT A")
    for column in ("who", "requests", "seconds", "requests/s"):
        table.add_column(column)
    for one in report["pft_a"]:
        keys = ("who", "requests", "seconds", "requests_per_s")
        table.add_row(*(str(one[key]) for key in keys))
    console.print(table, report["efficiency"])


def _spent(one: dict[str, Any]) -> str:
    return ", ".join(f"{name} {cpu}" for name, cpu in one.get("cpu_s", {}).items() if cpu >= 0.1)


def _page(report: dict[str, Any], asked: argparse.Namespace) -> str:
    machine, latency, ratio = report["machine"], report["latency"], report["efficiency"]
    rows = "\n".join(
        f"| {one['who']} | {one['requests']} | {one['seconds']} | {one['requests_per_s']} "
        f"| {_spent(one)} |"
        for one in report["pft_a"]
    )
    steady = "" if ratio["is_steady"] else " The floor's own times differed by more than 15 %."
    return f"""# Benchmarks

Written by `make bench`; repeat it with that command. Quote ratios: both sides of each were measured
in turn in this one run, on {machine["cores"]} cores and {machine["memory_gib"]} GiB, with client, fixture,
engine, PostgreSQL (fsync and synchronous_commit on), NATS and SeaweedFS on the same machine.

## PFT A, {asked.facilities} facilities x {asked.patients} patients, profile `plain`, every engine run verified

| who | requests | seconds | requests/s | CPU seconds of the engine's processes and the fixture |
|---|---:|---:|---:|---|
{rows}

**Efficiency** (floor seconds / engine seconds): median **{ratio["median"]}**, least {ratio["least"]},
most {ratio["most"]}.{steady}

## Latency, warm, from submission to the end that the client sees

| what | figure |
|---|---:|
| one execution with one Python step, p50 / p95 | {latency["single_step_p50_ms"]} / {latency["single_step_p95_ms"]} ms |
| a chain of 100 no-op steps | {latency["chain_100_steps_per_s"]} steps/s |
| a parallel loop of 1,000 no-op items, durable per item | {latency["parallel_1000_items_per_s"]} items/s |
"""


if __name__ == "__main__":
    main()
