"""What grows with the ledger, with a loop's items and with the workers of one machine.

One stack runs longer and longer loops; what they wrote is the full ledger in which a step and an execution
are timed again. Each number of workers has a stack of its own.
"""

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from tests.bench import latency, meter
from tests.bench.client import HEAD, Client
from tests.bench.drawing import LOOK, pygal
from tests.bench.loops import IN_FLIGHT
from tests.bench.page_workloads import told
from tests.bench.spread import share
from tests.proof.peaks import peaks
from tests.support.stack import Stack, running_stack

ITEMS = (10_000, 100_000, 1_000_000)
WORKERS = (1, 2, 4, 8)
# Of a loop that is the same for each number of workers.
SHARED_ITEMS = 10_000
SHARED_ROUNDS = 3
PAGE_ITEMS = 100
PAGES_ASKED = 20
# Of more than 100,000 items a loop takes a reference.
LOOP = (
    HEAD  # noqa: S608 - our own words
    + f"""metadata: {{name: loop}}
workload: {{n: 1000}}
workflow:
  - step: numbers
    tool:
      kind: duckdb
      query: "SELECT range AS n FROM range({{{{ workload.n | int }}}})"
      output: {{format: parquet}}
    next: each
  - step: each
    loop:
      in: "{{{{ numbers.rows }}}}"
      iterator: row
      spec: {{mode: parallel, max_in_flight: {IN_FLIGHT}}}
    tool: {{kind: noop, result: "{{{{ iter.row.n * 2 }}}}"}}
"""  # noqa: S608 - our own words
)
COUNT = "select count(*) from noetl.event"


def measure(root: Path) -> dict[str, Any]:
    """Measure both on stacks of their own."""
    with running_stack(root / "growing", "--workers", "1") as stack:
        found = _measure_growing(stack)
    return {**found, "by_workers": {str(many): _measure_workers(root, many) for many in WORKERS}}


def _measure_growing(stack: Stack) -> dict[str, Any]:
    """Time small work in a ledger that long loops fill, and the loops themselves."""
    client = Client(stack)
    client.register(LOOP)
    client.run("loop", n=100)
    by_events, by_items = [_time_small(stack)], {}
    for items in ITEMS:
        by_items[str(items)] = _measure_loop(stack, client, items)
        by_events.append(_time_small(stack))
    return {"by_events": by_events, "by_items": by_items}


def _time_small(stack: Stack) -> dict[str, Any]:
    events = asyncio.run(_count_events(stack.url("postgres")))
    return {
        "events": events,
        "execution_ms": latency.single(stack)["p50_ms"],
        "steps_per_s": latency.steps(stack)["per_s"],
    }


def _measure_loop(stack: Stack, client: Client, items: int) -> dict[str, Any]:
    """Run one loop; tell its rate, its cost, the most memory, and how long its pages take."""
    before, began = meter.costs(stack), time.perf_counter()
    with peaks(stack) as memory_mib:
        execution_id = client.submit("loop", n=items)
        client.wait(execution_id)
    seconds = time.perf_counter() - began
    spent = meter.costs(stack).since(before)
    address = f"/api/executions/{execution_id}"
    asked: dict[str, Callable[[], httpx.Response]] = {
        "status": lambda: client.http.get(f"{address}/status"),
        "first_items": lambda: client.http.get(
            f"{address}/items/each", params={"limit": PAGE_ITEMS}
        ),
        "last_items": lambda: client.http.get(
            f"{address}/items/each", params={"limit": PAGE_ITEMS, "after": items - PAGE_ITEMS - 1}
        ),
    }
    return {
        "per_s": round(items / seconds),
        "each": spent.per(items),
        "memory_mib": dict(memory_mib),
        "pages_ms": {name: _time_page(ask) for name, ask in asked.items()},
    }


def _time_page(ask: Callable[[], httpx.Response]) -> dict[str, float]:
    """Return the first answer's time, which folds what nobody has asked for, and the median's."""
    times: list[float] = []
    for _ in range(PAGES_ASKED):
        began = time.perf_counter()
        body = ask().raise_for_status().json()
        times.append(1000 * (time.perf_counter() - began))
        assert "items" not in body or len(body["items"]) == PAGE_ITEMS, "a page is full"
    return {"first": round(times[0], 1), "p50": round(share(times, 0.5), 1)}


def _measure_workers(root: Path, workers: int) -> dict[str, Any]:
    with running_stack(root / f"workers-{workers}", "--workers", str(workers)) as stack:
        client = Client(stack)
        client.register(LOOP)
        client.run("loop", n=1_000)
        with peaks(stack) as memory_mib:
            loop = meter.rounds(
                stack,
                lambda: client.run("loop", n=SHARED_ITEMS),
                units=SHARED_ITEMS,
                times=SHARED_ROUNDS,
            )
        return {"loop": loop, "steps": latency.steps(stack), "memory_mib": dict(memory_mib)}


async def _count_events(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval(COUNT))
    finally:
        await connection.close()


def section(found: dict[str, Any]) -> str:
    """Write the figures for people."""
    events = "\n".join(
        f"| {one['events']:,} | {told(one['execution_ms'])} ms | {told(one['steps_per_s'])} |"
        for one in found["by_events"]
    )
    items = "\n".join(
        f"| {int(many):,} | {one['per_s']:,} | {one['each']['cpu_us']['planner']:g} "
        f"| {one['each']['cpu_us']['worker']:g} | {one['memory_mib'].get('planner', 0)} "
        f"| {one['memory_mib'].get('worker', 0)} | {_pages(one['pages_ms'])} |"
        for many, one in found["by_items"].items()
    )
    workers = "\n".join(
        f"| {many} | {told(one['loop']['per_s'])} | {told(one['steps']['per_s'])} "
        f"| {one['memory_mib'].get('worker', 0)} |"
        for many, one in found["by_workers"].items()
    )
    return f"""## What grows

Small work in a ledger that long loops have filled; W1 and W2 as above.

| events in the ledger | W1, p50 | W2, steps/s |
|---:|---:|---:|
{events}

Those loops: parallel, of quick items. Memory is the most that a process held, pages that processes share divided between
them; a page is timed when it is asked for first, and in the middle of {PAGES_ASKED}.

| items | items/s | planner, CPU us an item | worker | planner, MiB | worker, MiB | status, first and last {PAGE_ITEMS} items, ms |
|---:|---:|---:|---:|---:|---:|---:|
{items}

More workers on this machine, whose cores they share: a loop of {SHARED_ITEMS:,} quick items, and W2. Memory is of all workers.

| workers | items/s | W2, steps/s | MiB |
|---:|---:|---:|---:|
{workers}
"""


def _pages(pages_ms: dict[str, dict[str, float]]) -> str:
    return ", ".join(f"{one['first']:g} ({one['p50']:g})" for one in pages_ms.values())


def draw(found: dict[str, Any]) -> Any:
    """Draw each figure as a part of its first one, over the powers of ten of what grew."""
    events, items = found["by_events"], found["by_items"].items()
    lines = {
        "time of an execution (W1), over events": [
            (one["events"], one["execution_ms"]["median"]) for one in events
        ],
        "time of a step (W2), over events": [
            (one["events"], 1 / one["steps_per_s"]["median"]) for one in events
        ],
        "time of an item, over items": [(int(many), 1 / one["per_s"]) for many, one in items],
        "memory of the planner, over items": [
            (int(many), one["memory_mib"]["planner"]) for many, one in items
        ],
        "memory of the worker, over items": [
            (int(many), one["memory_mib"]["worker"]) for many, one in items
        ],
    }
    chart = pygal.XY(
        title="What grows, as a part of what it was at first",
        x_title="events in the ledger, or items of the loop",
        x_value_formatter=lambda power: f"{10**power:,.0f}",
        x_labels=[3, 4, 5, 6],
        value_formatter=lambda ratio: f"{ratio:.2f}",
        truncate_legend=-1,
        legend_at_bottom_columns=2,
        **{**LOOK, "print_values": False},
    )
    for title, points in lines.items():
        first = points[0][1]
        chart.add(title, [(math.log10(x), y / first) for x, y in points])
    return chart
