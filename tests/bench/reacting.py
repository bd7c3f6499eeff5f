"""How soon things are known with many items in flight: reports in the ledger, positions saved.

One connection to NATS hears both the report of an item and the first message with the event that it
became, which goes out once it is committed: what lies between them is a little more than what it
took until the ledger had it. The age of a projector's epochs is what its metrics say meanwhile.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from nats.aio.msg import Msg
from prometheus_client.parser import text_string_to_metric_families
from tests.bench.client import HEAD, Client
from tests.bench.cpu import readiness
from tests.bench.site import Site, site
from tests.bench.spread import share
from tests.support.asking import http
from tests.support.stack import Stack

from noetl_chassis.observability import names
from noetl_contracts import subjects
from noetl_contracts.events.step_events import CallDone
from noetl_contracts.ledger import stored_event
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import CommandCompleted
from noetl_messaging.jetstream.connection import ConnectionTimeouts, open_connection

ITEMS = 3_000
IN_FLIGHT = 1_000
# Items take as long as a slow answer does, so that what is measured is not a queue of reports.
DELAY_MS = 2_000.0
# Answers that take equally long come back together, as many at a time as there are places.
SPREADS = (0.0, 0.5)
LOOK_S = 0.1
# Those that a report passes through and whose work is done by one thread of each process.
PARTS = ("worker", "planner", "postgres")
LOOP = (
    HEAD
    + f"""metadata: {{name: crowd}}
workload: {{n: {ITEMS}, site: ""}}
workflow:
  - step: each
    loop: {{in: "{{{{ workload.n }}}}", iterator: i, spec: {{mode: parallel, max_in_flight: {IN_FLIGHT}}}}}
    tool: {{kind: http, url: "{{{{ workload.site }}}}/item/{{{{ iter.i }}}}", response_type: json}}
"""
)

Heard = list[tuple[float, bytes]]


def measure(stack: Stack) -> dict[str, Any]:
    """Run one loop while listening, for each spread of delays; tell the times in milliseconds."""
    client = Client(stack)
    client.register(LOOP)
    return {
        "items": ITEMS,
        "in_flight": IN_FLIGHT,
        "delay_ms": DELAY_MS,
        "runs": [_measure(stack, client, spread) for spread in SPREADS],
    }


def _measure(stack: Stack, client: Client, spread: float) -> dict[str, Any]:
    with site(delay_ms=DELAY_MS, spread=spread) as served:
        client.run("crowd", n=IN_FLIGHT, site=served.url)
        before = readiness(stack)
        reports, events, ages_s = asyncio.run(_listen(stack, client, served))
    after = readiness(stack)
    waits_ms = [1000 * seconds for seconds in _waits(reports, events)]
    assert len(waits_ms) == ITEMS, len(waits_ms)
    return {
        "spread": spread,
        **{f"ingest_p{percent}_ms": _share(waits_ms, percent) for percent in (50, 95, 99)},
        "epoch_age_p99_s": round(share(ages_s, 0.99), 2),
        "epoch_age_most_s": round(max(ages_s), 2),
        "ready": {part: _ready(before[part], after[part]) for part in PARTS},
    }


def _ready(before: tuple[float, float], after: tuple[float, float]) -> dict[str, float]:
    ran_s, waited_s = (round(late - soon, 1) for soon, late in zip(before, after, strict=True))
    return {"ran_s": ran_s, "waited_s": waited_s}


def section(one: dict[str, Any]) -> str:
    """Write the figures for people."""
    rows = "\n".join(_row(run, one["delay_ms"] / 1000) for run in one["runs"])
    return f"""## {one["items"]:,} requests as items of a loop, {one["in_flight"]:,} in flight

From a worker's report of an item until its event is committed and heard of; and how long event loops and the
database's processes ran meanwhile, and were ready to run and waited for a processor.

| requests take | p50 / p95 / p99 | age of a projector's epochs, p99 / most | {" | ".join(PARTS)}: ran / waited |
|---|---:|---:|{"---:|" * len(PARTS)}
{rows}
"""


def _row(run: dict[str, Any], delay_s: float) -> str:
    shortest, longest = (delay_s * (1 + sign * run["spread"]) for sign in (-1, 1))
    length = f"{longest:g} s" if shortest == longest else f"{shortest:g} to {longest:g} s"
    times = " / ".join(f"{run[f'ingest_p{percent}_ms']:,}" for percent in (50, 95, 99))
    ages = f"{run['epoch_age_p99_s']} / {run['epoch_age_most_s']}"
    ready = " | ".join(_shown(run, part) for part in PARTS)
    return f"| {length} | {times} ms | {ages} s | {ready} |"


def _shown(run: dict[str, Any], part: str) -> str:
    ready = run["ready"][part]
    return f"{ready['ran_s']} / {ready['waited_s']} s"


async def _listen(stack: Stack, client: Client, served: Site) -> tuple[Heard, Heard, list[float]]:
    reports, events, ages_s = Heard(), Heard(), list[float]()

    async def note_report(message: Msg) -> None:
        reports.append((time.perf_counter(), message.data))

    async def note_event(message: Msg) -> None:
        events.append((time.perf_counter(), message.data))

    waits = ConnectionTimeouts(connect_s=10.0)
    async with open_connection(stack.url("nats"), name="bench", waits=waits) as connection:
        await connection.client.subscribe(f"{subjects.INGEST}.>", cb=note_report)
        await connection.client.subscribe(f"{subjects.EVENTS}.>", cb=note_event)
        running = asyncio.create_task(asyncio.to_thread(client.run, "crowd", site=served.url))
        while not running.done():
            ages_s += await asyncio.to_thread(lambda: list(_ages(stack)))
            await asyncio.wait([running], timeout=LOOK_S)
        await running
        await asyncio.sleep(1.0)
    return reports, events, ages_s


def _ages(stack: Stack) -> Iterator[float]:
    for name in stack.names("projector"):
        url = stack.state["processes"][name]["health_url"]
        for family in text_string_to_metric_families(http.get(f"{url}/metrics", timeout=10).text):
            if family.name == names.CHECKPOINT_AGE.name:
                yield from (sample.value for sample in family.samples)


def _waits(reports: Heard, events: Heard) -> Iterator[float]:
    reported_at = {
        fact.command_id: at
        for at, data in reports
        for fact in facts.decode_fact_batch(data).facts
        if isinstance(fact, CommandCompleted)
    }
    for at, data in events:
        for envelope in stored_event.decode_event_batch(data).events:
            event = envelope.event
            if isinstance(event, CallDone) and event.command_id in reported_at:
                yield at - reported_at.pop(event.command_id)


def _share(waits_ms: list[float], percent: int) -> float:
    return round(share(waits_ms, percent / 100), 1)
