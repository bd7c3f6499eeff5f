"""Sections of the page: the workloads W1 to W5, the ledger, and the raw floors."""

from collections.abc import Callable
from typing import Any

from tests.bench.loops import IN_FLIGHT

PARTS = ("planner", "worker", "postgres", "nats", "projector")


def told(one: dict[str, float]) -> str:
    """Write a median with how far the rounds lay apart."""
    return f"{_number(one['median'])} ({_number(one['least'])} to {_number(one['most'])})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:g}"


def costs(each: dict[str, Any]) -> str:
    """Write the cells of what one unit cost: CPU by service and of the rest, transactions, log."""
    cpu = each["cpu_us"]
    rest = sum(us for part, us in cpu.items() if part not in PARTS)
    cells = [*(_number(round(cpu.get(part, 0.0), 1)) for part in PARTS), _number(round(rest, 1))]
    return " | ".join([*cells, _number(each["transactions"]), _number(each["wal_bytes"])])


HEAD = (
    f"| what | figure | {' | '.join(PARTS)} | others | transactions | log bytes |\n"
    f"|---|---:|{'---:|' * (len(PARTS) + 3)}"
)
COLUMNS = "Columns of services: CPU microseconds of one unit (execution, step, item, request)."


def _w1(one: dict[str, Any]) -> str:
    return f"""## W1: one execution with one Python step, warm, from submission to the end that the client sees

{COLUMNS}

{HEAD}
| {one["units"]} one after another, p50 / p95 | {told(one["p50_ms"])} / {told(one["p95_ms"])} ms | {costs(one["each"])} |
"""


def _w2(one: dict[str, Any]) -> str:
    return f"""## W2: one execution of {one["units"]} no-op steps in a row

{HEAD}
| a step | {told(one["per_s"])} steps/s | {costs(one["each"])} |
"""


def _w3(found: dict[str, Any]) -> str:
    return f"""## W3: a parallel loop of no-op items, {IN_FLIGHT:,} in flight, results collected, durable per item

{HEAD}
{_loops(found)}

The planner's CPU of one item, at most items to at least: **{found["planner_growth"]}**.
"""


def _w3f(found: dict[str, Any]) -> str:
    return f"""## W3f: the same in frames of {found["frame_rows"]} rows, results collected, durable per frame

{HEAD}
{_loops(found)}
"""


def _loops(found: dict[str, Any]) -> str:
    return "\n".join(
        f"| {int(items):,} items | {told(item['per_s'])} items/s | {costs(item['each'])} |"
        for items, item in found["by_items"].items()
    )


def _w4(found: dict[str, Any]) -> str:
    names = {
        "floor": "the raw program",
        "items": "a durable item for each",
        "frames": f"frames of {found['frame_rows']} rows",
    }
    rows = "\n".join(
        f"| {about} | {told(found[name]['per_s'])} requests/s | {costs(found[name]['each'])} |"
        for name, about in names.items()
    )
    ratio = found["efficiency"]
    return f"""## W4: {found["requests"]:,} GETs of 1 KB JSON after 2 ms, a row saved for each, {found["workers"]} workers

The raw program has the same HTTP client and database driver and saves rows by fifties, each time in one transaction. Its
CPU is not in the columns, which tell of services alone; `others` holds the site's.

{HEAD}
{rows}

**Efficiency** (floor seconds / engine seconds): frames **{told(ratio["frames"])}**, items {told(ratio["items"])}.
"""


def _w5(one: dict[str, Any]) -> str:
    return f"""## W5: every worker killed in the middle of {one["items"]:,} items, back after a second

| what | figure |
|---|---:|
| the loop undisturbed | {one["undisturbed_s"]} s |
| the loop with the kill, {one["killed_after_s"]} s after its start | {one["seconds"]} s |
| items lost; items run again, as their worker died before it could tell | {one["lost"]}; {one["run_again"]} |
| results lost; results counted twice | {one["results_lost"]}; {one["results_doubled"]} |
"""


def _small(one: dict[str, Any]) -> str:
    return f"""## {one["units"]:,} executions of one no-op step, all at once

{HEAD}
| an execution | {told(one["per_s"])} executions/s | {costs(one["each"])} |
"""


def _ledger(found: dict[str, Any]) -> str:
    item, outbox = found["append"], found["outbox"]
    return f"""## The ledger and the outbox

| what | events/s or messages/s | CPU of PostgreSQL |
|---|---:|---:|
| `noetl.append`, {item["batch_events"]} events a transaction, with encoding | {told(item["ledger_per_s"])} | {item["ledger_postgres_cpu_us"]} us an event |
| a raw insert of the same rows into an equal table | {told(item["raw_per_s"])} | {item["raw_postgres_cpu_us"]} us an event |
| one outbox publisher, {outbox["messages"]:,} messages of {outbox["bytes"]} bytes | {told(outbox["per_s"])} | |

**Ratio** (raw seconds / ledger seconds): **{told(item["ratio"])}**.
"""


FLOORS = {
    "append_1": ("PostgreSQL, one row a transaction, 1 connection", "rows/s"),
    "append_16": ("the same, 16 connections", "rows/s"),
    "append_unnest": ("500 rows a transaction, `unnest`", "rows/s"),
    "append_copy": ("500 rows a transaction, `COPY`", "rows/s"),
    "publish_1": ("JetStream, one message after another", "messages/s"),
    "publish_window": ("JetStream, windows of 500", "messages/s"),
    "http_32": ("aiohttp, 32 in flight, 1 KB JSON at once", "requests/s"),
}


def _handover(found: dict[str, Any]) -> str:
    return f"""## What of W2 and W3 is the servers' and the clients' own

The same messages over JetStream, and as many rows committed to PostgreSQL as the engine writes events, between two
processes that decide, check, project and repeat nothing: the most that any engine of this design could do.

| what | figure |
|---|---:|
| a step of W2: one handed over at a time | {told(found["steps_per_s"])} steps/s |
| an item of W3: {IN_FLIGHT:,} in flight | {told(found["items_per_s"])} items/s |
"""


UNAIDED = {
    "floor": "the raw program, which copies rows or inserts them by fifties",
    "unaided": "by the playbook's own statements, with no engine",
    "lane": "the worker's lane alone",
    "lanes": "two of them, half each",
}


def _unaided(found: dict[str, Any]) -> str:
    names = {"frames": "W4 in frames of 50", "pft": "PFT A, 1 x 1,000"}
    rows = "\n".join(
        f"| {names[name]}: {about} | {told(item['per_s'][way])} |"
        f" {_known(item['of_floor'], way)} | {_known(item['cpu_us'], way)} |"
        for name, item in ((name, found[name]) for name in names)
        for way, about in UNAIDED.items()
    )
    return f"""## What of W4 and PFT A is the playbooks' own

The same requests by the worker's client and the playbooks' own statements, as many at once as they have: nothing is rendered
but claims, nothing judged, recorded, retried or checked. Then the worker's lane, which interprets the playbooks with its
real tools while messages, records and payloads stay in its memory and nobody plans, writes events or projects: no engine with
this lane is faster, whatever the rest of it costs. All in turn.

| what | requests/s | of the raw program's speed | CPU of the lanes, us a request |
|---|---:|---:|---:|
{rows}
"""


def _known(found: dict[str, Any], way: str) -> str:
    return told(found[way]) if way in found else ""


def _floors(found: dict[str, Any]) -> str:
    rows = "\n".join(
        f"| {about} | {told(found[name])} {unit} |"
        for name, (about, unit) in FLOORS.items()
        if name in found
    )
    return f"""## Raw floors, with nothing around them

| what | figure |
|---|---:|
{rows}
"""


SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "w1": _w1,
    "w2": _w2,
    "w3": _w3,
    "w3f": _w3f,
    "w4": _w4,
    "w5": _w5,
    "small": _small,
    "handover": _handover,
    "unaided": _unaided,
    "ledger": _ledger,
    "floors": _floors,
}
