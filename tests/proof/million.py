"""A loop over a million rows of a step's result: what the planner holds, what the ledger holds."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psutil
from tests.proof import running
from tests.support.parity import assert_parity
from tests.support.stack import Stack, running_stack

ROWS, FRAME_ROWS = 1_000_000, 2_000
EVENT_BYTES_MAX = 2 * 1024
OPENING_S_MAX = 1.0
# What allocators keep for themselves between turns; a state that grew with the rows is far above.
GROWTH_MIB_MAX = 16
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: million, path: proof/million}
workload: {rows: 1000000, frame_rows: 2000}
workflow:
  - step: load
    tool:
      kind: python
      input: {rows: "{{ workload.rows }}"}
      code: "return [{'n': n} for n in range(rows)]"
    # A preview is as large as its author wants it, 1 KiB unless told otherwise.
    output: {preview_max_bytes: 0}
    next: {arcs: [{step: each}]}
  - step: each
    loop:
      in: "{{ load }}"
      iterator: rows
      spec:
        mode: chunked
        chunk_size: "{{ workload.frame_rows }}"
        max_in_flight: 4
        collect: none
        frame: {process: frame}
    tool: {kind: noop}
    set: {ctx.total: "{{ each.stats.total }}", ctx.success: "{{ each.stats.success }}"}
"""
EVENTS = """
SELECT count(*) AS events,
       count(*) FILTER (WHERE event_type LIKE 'frame.%') AS of_frames,
       count(*) FILTER (WHERE event_type = 'frame.committed') AS frames,
       count(*) FILTER (WHERE event_type = 'stage.closed') AS closed,
       sum((context->>'row_count')::bigint) FILTER (WHERE event_type = 'frame.committed') AS rows,
       max(octet_length(to_jsonb(e)::text)) AS largest,
       extract(epoch FROM min(created_at) FILTER (WHERE event_type = 'stage.opened')
         - max(created_at) FILTER (WHERE event_type = 'step.enter' AND node_name = 'each'))::float8 AS opening_s,
       extract(epoch FROM min(created_at) FILTER (WHERE event_type = 'frame.dispatched')
         - max(created_at) FILTER (WHERE event_type = 'call.done' AND node_name = 'load'))::float8 AS first_frame_s,
       extract(epoch FROM min(created_at) FILTER (WHERE event_type = 'frame.committed')
         - min(created_at) FILTER (WHERE event_type = 'stage.opened'))::float8 AS first_commit_s
FROM noetl.event e WHERE execution_id = $1
"""


def prove(folder: Path) -> dict[str, Any]:
    """Run the loop and look at the planner and the ledger."""
    with running_stack(folder / "stack", "--workers", "1", "--no-s3") as stack:
        path = running.register(stack, PLAYBOOK)
        running.run(stack, path, rows=FRAME_ROWS * 10)
        with resident(stack, "planner-1") as planner:
            ran = running.run(stack, path, rows=ROWS, frame_rows=FRAME_ROWS)
        counted = asyncio.run(_counted(stack, ran.execution_id))
        assert_parity(stack, ran.execution_id)
    frames = ROWS // FRAME_ROWS
    assert ran.variables == {"total": frames, "success": frames}, ran.variables
    assert (counted["frames"], counted["rows"], counted["closed"]) == (frames, ROWS, 1)
    assert counted["of_frames"] <= 4 * frames
    assert counted["largest"] < EVENT_BYTES_MAX, counted
    assert counted["opening_s"] < OPENING_S_MAX, counted
    grown = max(planner) - planner[0]
    assert grown < GROWTH_MIB_MAX, planner
    return {
        "rows": ROWS,
        **counted,
        "planner_mib": [planner[0], max(planner), planner[-1]],
        **{name: getattr(ran, name) for name in ("seconds", "cpu_s", "memory_mib")},
    }


@contextmanager
def resident(stack: Stack, name: str) -> Iterator[list[int]]:
    """Look at the memory of a process twice a second, in MiB, until the block ends."""
    process, seen, is_over = psutil.Process(stack.pid(name)), list[int](), threading.Event()

    def look() -> None:
        seen.append(process.memory_info().rss // 2**20)

    def watch() -> None:
        while not is_over.wait(0.5):
            look()

    look()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        is_over.set()
        watcher.join()
        look()


async def _counted(stack: Stack, execution_id: str) -> dict[str, Any]:
    db = await asyncpg.connect(stack.url("postgres_reader"))
    try:
        found = await db.fetchrow(EVENTS, int(execution_id))
    finally:
        await db.close()
    assert found is not None
    return {
        name: int(value) if name == "rows" else round(value, 3) for name, value in found.items()
    }


def section(found: dict[str, Any]) -> str:
    """Write what was found."""
    first, most, last = found["planner_mib"]
    return f"""A chunked loop of {found["rows"]:,} rows of a step's result, `process: frame`, over {found["frames"]:,} frames of a body that does nothing.

| what | found | bound |
|---|---:|---:|
| rows that frames have committed | {found["rows"]:,} | all |
| events, of them about frames | {found["events"]:,}, {found["of_frames"]:,} | 4 a frame |
| `stage.closed` | {found["closed"]} | 1 |
| the largest event, as the ledger's whole row in JSON | {found["largest"]:,} bytes | 2,048 |
| the stage opens after the step was entered; 0: in the same transaction | {found["opening_s"]} s | 1 s |
| the first frame is dispatched after the rows were there | {found["first_frame_s"]} s | |
| the first frame is committed, the rows cut for all frames before it | {found["first_commit_s"]} s | |
| the planner's resident memory before, at most, after | {first}, {most}, {last} MiB | {GROWTH_MIB_MAX} MiB more |

What the projections show is what the ledger folds to, row by row.

{running.costs(found)}"""
