"""Items of a parallel loop, durable one by one (W3) or frame by frame (W3f)."""

from collections.abc import Sequence
from typing import Any

from tests.bench import meter
from tests.bench.client import HEAD, Client
from tests.support.stack import Stack

ITEMS = (1_000, 10_000)
# From here on a round is long enough to stand for itself.
LONG_ITEMS = 10_000
ROUNDS, LONG_ROUNDS = 5, 3
FRAME_ITEMS = (10_000, 100_000)
FRAME_ROWS = 100
IN_FLIGHT = 1_000
LOOP = (
    HEAD
    + f"""metadata: {{name: loop}}
workload: {{n: 1000}}
workflow:
  - step: each
    loop:
      in: "{{{{ workload.n }}}}"
      iterator: i
      spec: {{mode: parallel, max_in_flight: {IN_FLIGHT}}}
    tool: {{kind: noop, result: "{{{{ iter.i * 2 }}}}"}}
"""
)
FRAMES = (
    HEAD
    + f"""metadata: {{name: frames}}
workload: {{n: 1000}}
workflow:
  - step: each
    loop:
      in: "{{{{ workload.n }}}}"
      iterator: part
      spec: {{mode: chunked, chunk_size: {FRAME_ROWS}, max_in_flight: 16, frame: {{process: frame}}}}
    tool: {{kind: python, input: {{part: "{{{{ iter.part }}}}"}}, code: "return [i * 2 for i in part]"}}
"""
)


def by_item(stack: Stack, items: Sequence[int] = ITEMS) -> dict[str, Any]:
    """W3, for each number of items; and how the planner's cost of one grows with them."""
    client = Client(stack)
    client.register(LOOP)
    client.run("loop", n=100)
    found = {str(many): _looped(stack, client, "loop", many) for many in sorted(items)}
    costs = [item["each"]["cpu_us"]["planner"] for item in found.values()]
    return {"by_items": found, "planner_growth": round(costs[-1] / costs[0], 2)}


def by_frame(stack: Stack, items: Sequence[int] = FRAME_ITEMS) -> dict[str, Any]:
    """W3f: the same in frames, each of which is durable as a whole."""
    client = Client(stack)
    client.register(FRAMES)
    client.run("frames", n=FRAME_ROWS)
    found = {str(many): _looped(stack, client, "frames", many) for many in sorted(items)}
    return {"frame_rows": FRAME_ROWS, "by_items": found}


def _looped(stack: Stack, client: Client, path: str, items: int) -> dict[str, Any]:
    times = LONG_ROUNDS if items >= LONG_ITEMS and path == "loop" else ROUNDS
    times = 1 if items > LONG_ITEMS and path == "loop" else times
    return meter.rounds(stack, lambda: client.run(path, n=items), units=items, times=times)
