"""Measure against the raw floor, in one run on one machine; writes docs/benchmarks.{json,md}."""

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
from rich.console import Console
from rich.table import Table
from tests.bench import api, auditing, latency, past, projecting, tiers
from tests.bench.cpu import spent
from tests.bench.history import history
from tests.bench.page import page
from tests.bench.watching import high_water
from tests.support import pft
from tests.support.pft import Fixture
from tests.support.stack import Stack, running_stack

DOCS = Path("docs")
UNSTEADY_SHARE = 0.15

console = Console()


def main() -> None:
    """Run the series and write the report."""
    asked = _arguments()
    looking_back, projected = past.measure(), projecting.measure()
    with tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder:
        root = Path(folder)
        with running_stack(root / "stack", "--workers", str(asked.workers)) as stack:
            pft.prepare(stack)
            report: dict[str, Any] = {
                "machine": _machine(),
                "scale": {"facilities": asked.facilities, "patients": asked.patients},
                "latency": latency.measure(stack),
                "tiers": tiers.measure((root / "payloads").as_uri()),
                "past": looking_back,
                "projecting": projected,
                "auditing": auditing.measure(),
                "pft": {name: _series(stack, root / name, name, asked) for name in asked.variant},
            }
            # Last, so that no other series has a full ledger.
            report["api"] = api.measure(stack)
    _write(report)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--variant", nargs="+", default=["a"], choices=pft.VARIANTS, help="playbooks to measure"
    )
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


def _series(stack: Stack, root: Path, variant: str, asked: argparse.Namespace) -> dict[str, Any]:
    rounds = list(_pft_rounds(stack, root, variant, asked))
    return {"rounds": rounds, "efficiency": _efficiency(rounds)}


def _pft_rounds(
    stack: Stack, root: Path, variant: str, asked: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    with pft.fixture(root) as served:
        for turn in range(asked.rounds):
            pair: list[Callable[[Stack, Fixture, str, argparse.Namespace], dict[str, Any]]]
            pair = [_floor, _engine] if turn % 2 == 0 else [_engine, _floor]
            for measure in pair:
                found = measure(stack, served, variant, asked)
                console.print(variant, found)
                yield found


def _engine(
    stack: Stack, served: Fixture, variant: str, asked: argparse.Namespace
) -> dict[str, Any]:
    before = spent(stack, fixture=served.pid)
    with high_water(stack) as seen:
        run = pft.start(
            stack, served, variant=variant, facilities=asked.facilities, patients=asked.patients
        )
        run.wait(patience_s=1800)
    after = spent(stack, fixture=served.pid)
    run.verify()
    requests = served.summary()["requests"]
    return {
        "who": "engine",
        "requests": requests,
        "seconds": round(run.seconds, 2),
        "requests_per_s": round(requests / run.seconds),
        "cpu_s": {name: round(cpu - before[name], 1) for name, cpu in after.items()},
        "memory_mib": seen.memory_mib,
        "connections": seen.connections,
        **history(stack, run.execution_id),
    }


def _floor(
    stack: Stack, served: Fixture, variant: str, asked: argparse.Namespace
) -> dict[str, Any]:
    served.begin()
    done = subprocess.run(  # noqa: S603 - our own command line
        [
            *(sys.executable, "-m", "noetl_pft", "floor", "--api", served.api),
            *("--variant", variant),
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


def _write(report: dict[str, Any]) -> None:
    DOCS.mkdir(exist_ok=True)
    (DOCS / "benchmarks.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    (DOCS / "benchmarks.md").write_text(page(report))
    for variant, series in report["pft"].items():
        table = Table(title=f"PFT {variant.upper()}")
        for column in ("who", "requests", "seconds", "requests/s"):
            table.add_column(column)
        for one in series["rounds"]:
            keys = ("who", "requests", "seconds", "requests_per_s")
            table.add_row(*(str(one[key]) for key in keys))
        console.print(table, series["efficiency"])


if __name__ == "__main__":
    main()
