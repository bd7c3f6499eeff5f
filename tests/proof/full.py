"""PFT A, B and C at full size: every run verified, with what it cost and what it left."""

from pathlib import Path
from typing import Any

from tests.bench.cpu import spent
from tests.bench.history import history
from tests.bench.watching import high_water
from tests.proof import running
from tests.support import pft
from tests.support.stack import Stack, running_stack

FACILITIES, PATIENTS, WORKERS = 10, 1000, 2


def prove(folder: Path) -> dict[str, Any]:
    """Run each playbook on a stack of its own, one after another."""
    variants = {}
    for variant in pft.VARIANTS:
        with running_stack(folder / variant, "--workers", str(WORKERS)) as stack:
            pft.prepare(stack)
            with pft.fixture(folder) as served:
                variants[variant] = _figures(stack, served, variant)
    return {
        "facilities": FACILITIES,
        "patients": PATIENTS,
        "workers": WORKERS,
        "variants": variants,
    }


def _figures(stack: Stack, served: pft.Fixture, variant: str) -> dict[str, Any]:
    before = spent(stack)
    with high_water(stack) as seen:
        run = pft.start(stack, served, variant=variant, facilities=FACILITIES, patients=PATIENTS)
        run.wait(running.PATIENCE_S)
    after = spent(stack)
    run.verify()
    requests = served.summary()["requests"]
    return {
        "requests": requests,
        "seconds": round(run.seconds, 1),
        "requests_per_s": round(requests / run.seconds),
        "cpu_s": {part: round(cpu - before.get(part, 0.0), 1) for part, cpu in after.items()},
        "memory_mib": seen.memory_mib,
        "connections": seen.connections,
        **history(stack, run.execution_id),
    }


def section(found: dict[str, Any]) -> str:
    """Write what was found."""
    variants: dict[str, dict[str, Any]] = found["variants"]
    rows = "\n".join(
        f"| {name.upper()} | {item['requests']:,} | {item['seconds']} | {item['requests_per_s']:,} | {item['frames']:,} "
        f"| {item['rows_per_frame']} | {item['frame_events_per_frame']} | {item['command_events']:,} | {item['events']:,} "
        f"| {item['connections']} |"
        for name, item in variants.items()
    )
    parts = list(next(iter(variants.values()))["memory_mib"])
    memory = "\n".join(
        f"| {name.upper()} | {' | '.join(str(item['memory_mib'][part]) for part in parts)} |"
        for name, item in variants.items()
    )
    cpu = "\n".join(
        f"| {name.upper()} | {' | '.join(str(item['cpu_s'][part]) for part in parts)} |"
        for name, item in variants.items()
    )
    head = f"| | {' | '.join(parts)} |\n|---|{'---:|' * len(parts)}"
    return f"""The reference workload at {found["facilities"]} facilities x {found["patients"]:,} patients with \
{found["workers"]} workers; every run was verified against the fixture's own record, the tables and the
event log. A request of B fetches a frame of 50 patients or assessments, one of A or C a single record.

| playbook | requests | seconds | requests/s | frames | rows a frame | events a frame | events about commands | events | connections to PostgreSQL, most |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{rows}

The most memory that each part took, in MiB (what its processes share, once):

{head}
{memory}

CPU seconds:

{head}
{cpu}
"""
