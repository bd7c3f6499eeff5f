"""W5: every worker is killed in the middle of a loop and comes back after a second."""

import asyncio
import time
from contextlib import ExitStack
from typing import Any

import asyncpg
from tests.bench import rows
from tests.bench.client import HEAD, Client
from tests.support.servers import wait_until
from tests.support.stack import Stack

ITEMS = 1_000
KILLED_AFTER = 300
AWAY_S = 1.0
PATIENCE_S = 180.0
LOOP = (
    HEAD
    + f"""metadata: {{name: crash}}
workload: {{n: {ITEMS}, run: ""}}
workflow:
  - step: each
    loop: {{in: "{{{{ workload.n }}}}", iterator: i, spec: {{mode: parallel, max_in_flight: 100}}}}
    tool:
      kind: postgres
      auth: {rows.CREDENTIAL}
      query: "{rows.SAVE_ITEM}"
      params: {{run: "{{{{ workload.run }}}}", item: "{{{{ iter.i }}}}"}}
"""
)
# An item has one outcome in the history however often it was run.
OUTCOMES = """
SELECT count(*) AS outcomes, count(DISTINCT context->>'item_index') AS items
FROM noetl.event WHERE execution_id = $1 AND event_type = 'call.done'
"""


def measure(stack: Stack) -> dict[str, Any]:
    """Kill in the middle and count: seconds in all, what is missing, what was run or counted twice."""
    client, dsn, run = Client(stack), stack.url("target"), rows.new_run()
    rows.prepare(dsn)
    client.keep(rows.CREDENTIAL, dsn)
    client.register(LOOP)
    calm = client.run("crash", run=rows.new_run())
    started = time.perf_counter()
    execution_id = client.submit("crash", run=run)
    wait_until(
        lambda: rows.counted(dsn, run, items=ITEMS)["rows"] >= KILLED_AFTER,
        timeout_s=PATIENCE_S,
        what="a part of the items is done",
    )
    with ExitStack() as away:
        for name in stack.names("worker"):
            away.enter_context(stack.without(name))
        killed_s = time.perf_counter() - started
        time.sleep(AWAY_S)
    client.wait(execution_id)
    seconds = time.perf_counter() - started
    outcomes = asyncio.run(_outcomes(stack.url("postgres_reader"), int(execution_id)))
    return {
        "items": ITEMS,
        "undisturbed_s": round(calm, 2),
        "killed_after_s": round(killed_s, 2),
        "seconds": round(seconds, 2),
        **rows.counted(dsn, run, items=ITEMS),
        "results_doubled": outcomes["outcomes"] - outcomes["items"],
        "results_lost": ITEMS - outcomes["items"],
    }


async def _outcomes(dsn: str, execution_id: int) -> asyncpg.Record:
    connection = await asyncpg.connect(dsn)
    try:
        row = await connection.fetchrow(OUTCOMES, execution_id)
    finally:
        await connection.close()
    assert row is not None, "a count is one row"
    return row
