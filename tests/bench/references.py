"""PFT: the reference workload beside its raw floor, in turn, every run of the engine verified."""

import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console
from tests.bench import meter
from tests.bench.history import history
from tests.bench.watching import high_water
from tests.support import pft
from tests.support.pft import Fixture
from tests.support.stack import Stack

UNSTEADY_SHARE = 0.15

console = Console()


class Size(Struct, frozen=True, kw_only=True):
    """How much of the workload is run, and how often."""

    facilities: int = 1
    patients: int = 1000
    rounds: int = 3


def measure(stack: Stack, root: Path, variants: Sequence[str], size: Size) -> dict[str, Any]:
    """Run the variants one after another."""
    pft.prepare(stack)
    return {
        "facilities": size.facilities,
        "patients": size.patients,
        "workers": len(stack.names("worker")),
        "variants": {name: _series(stack, root / name, name, size) for name in variants},
    }


def _series(stack: Stack, root: Path, variant: str, size: Size) -> dict[str, Any]:
    rounds = list(_rounds(stack, root, variant, size))
    return {"rounds": rounds, "efficiency": efficiency(rounds)}


def _rounds(stack: Stack, root: Path, variant: str, size: Size) -> Iterator[dict[str, Any]]:
    with pft.fixture(root) as served:
        for turn in range(size.rounds):
            pair: list[Callable[[Stack, Fixture, str, Size], dict[str, Any]]]
            pair = [_floor, _engine] if turn % 2 == 0 else [_engine, _floor]
            for measure in pair:
                found = measure(stack, served, variant, size)
                console.print(variant, found)
                yield found


def _engine(stack: Stack, served: Fixture, variant: str, size: Size) -> dict[str, Any]:
    before = meter.costs(stack, fixture=served.pid)
    with high_water(stack) as seen:
        run = pft.start(
            stack, served, variant=variant, facilities=size.facilities, patients=size.patients
        )
        run.follow(patience_s=1800)
    spent = meter.costs(stack, fixture=served.pid).since(before)
    run.verify()
    requests = served.summary()["requests"]
    each = spent.per(requests)
    return {
        "who": "engine",
        "requests": requests,
        "seconds": round(run.seconds, 2),
        "requests_per_s": round(requests / run.seconds),
        "cpu_s": {name: round(cpu, 1) for name, cpu in spent.cpu_s.items()},
        "transactions_each": each["transactions"],
        "wal_bytes_each": each["wal_bytes"],
        "memory_mib": seen.memory_mib,
        "control_plane_mib": seen.control_plane_mib,
        "connections": seen.connections,
        **history(stack, run.execution_id),
    }


def _floor(stack: Stack, served: Fixture, variant: str, size: Size) -> dict[str, Any]:
    served.begin()
    before, cpu_s = meter.costs(stack, fixture=served.pid), _children_cpu_s()
    done = subprocess.run(  # noqa: S603 - our own command line
        [
            *(sys.executable, "-m", "noetl_pft", "floor", "--api", served.api),
            *("--variant", variant),
            *("--dsn", stack.url("target")),
            *("--facilities", str(size.facilities), "--patients", str(size.patients)),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    cpu_s = _children_cpu_s() - cpu_s
    spent = meter.costs(stack, fixture=served.pid).since(before)
    answer = msgspec.json.decode(done.stdout.strip().splitlines()[-1])
    return {
        "who": "floor",
        "requests": answer["requests"],
        "seconds": round(answer["seconds"], 2),
        "requests_per_s": round(answer["requests_per_second"]),
        "cpu_s": {
            "program": round(cpu_s, 1),
            **{name: round(spent.cpu_s[name], 1) for name in ("postgres", "fixture")},
        },
    }


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def efficiency(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Say what part of the floor's speed the engine has."""
    seconds = {
        who: [item["seconds"] for item in rounds if item["who"] == who]
        for who in ("floor", "engine")
    }
    floors = seconds["floor"]
    return {
        "median": round(statistics.median(floors) / statistics.median(seconds["engine"]), 3),
        "least": round(min(floors) / max(seconds["engine"]), 3),
        "most": round(max(floors) / min(seconds["engine"]), 3),
        "is_steady": (max(floors) - min(floors)) / min(floors) <= UNSTEADY_SHARE,
    }
