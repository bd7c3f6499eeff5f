"""What the loads found, kept as JSON and shown as a page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tests.load import page_console, page_soak
from tests.load.plots import DRAWING, draw
from tests.load.telling import counts, on, table
from tests.load.tenants import WORKERS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
JSON_FILE = BENCHMARKS / "load.json"
PAGE_FILE = BENCHMARKS / "load.md"
_HEAD = """# Load and soak

Each section is one command, and what it found on a stack of its own: `make soak`, `make load LOADS=concurrent`,
`make load LOADS=sweep`, `make load LOADS=tenants`, `make load LOADS=console`. Times say how busy the machine was as much as how fast the engine is;
`load` beside a figure is the machine's load average over its processors when it began and when it ended. Counts, memory and
CPU seconds do not depend on that.
"""


def read(file: Path = JSON_FILE) -> dict[str, Any]:
    """Read what was found so far, by name."""
    found: dict[str, Any] = msgspec.json.decode(file.read_bytes()) if file.exists() else {}
    return found


def keep(found: dict[str, Any], *, folder: Path = BENCHMARKS) -> None:
    """Write all that was found, the page, and the soak's drawing."""
    (folder / JSON_FILE.name).write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    (folder / PAGE_FILE.name).write_text(page(found))
    if "soak" in found:
        (folder / DRAWING).write_bytes(draw(found["soak"]))


def page(found: dict[str, Any]) -> str:
    """Write the page: a section for each load that was run."""
    sections = [show(found[name]) for name, show in SECTIONS.items() if name in found]
    return "\n".join([_HEAD, *sections])


def _concurrent(one: dict[str, Any]) -> str:
    cpu_us = one["each"]["cpu_us"]
    spans = [
        (name, *(one[f"{name}_mib"][part] for part in ("first", "most", "last")))
        for name in ("planner", "worker", "projector")
    ]
    return f"""## {one["executions"]:,} executions at once

Every one of them waits for a message of its own, so that all are open together; then each gets it, does one more step
and ends. {on(one)}

{
        table(
            ("what", "found"),
            [
                ("open at the same time, every one parked", one["open_at_once"]),
                ("completed, with the right variables", one["right"]),
                ("different inputs among them", one["different"]),
                ("histories replayed: chain, fold and every row the same", one["audit"]["ok"]),
                ("events", one["audit"]["events"]),
                ("processes that had to be started again", sum(one["restarts"].values())),
                ("requests that were repeated by their caller", one["repeated"]),
                ("submitted a second, until the last was answered", one["submitted_per_s"]),
                ("waiting a second, from the first submission on", one["waiting_per_s"]),
                ("messages taken a second", one["signalled_per_s"]),
                ("ended a second, from the first message on", one["ended_per_s"]),
                ("connections to PostgreSQL, at most", one["connections"]),
                ("rows of the outbox, at most", one["outbox_rows"]),
                ("transactions an execution", one["each"]["transactions"]),
                ("bytes of PostgreSQL's log an execution", one["each"]["wal_bytes"]),
            ],
        )
    }

{table(("MiB of", "before", "most", "after"), spans)}

CPU of an execution, ms: {", ".join(f"{name} {cpu / 1000:.1f}" for name, cpu in cpu_us.items())}.
"""


def _sweep(one: dict[str, Any]) -> str:
    rows = [
        (
            f"`{address}`",
            route["requests"],
            route["p50_ms"],
            route["p95_ms"],
            route["p99_ms"],
            route["bytes_most"],
            ", ".join(f"{status}" for status in route["statuses"]),
        )
        for address, route in one["routes"].items()
        if route["requests"]
    ]
    requests = sum(route["requests"] for route in one["routes"].values())
    return f"""## Every GET over {one["executions"]:,} executions

{
        one[
            "events"
        ]:,} events, appended as a planner appends and with the rows that they fold to, of every story that the tests
tell; and a few executions of each playbook of the soak, run by the stack. Every GET of the OpenAPI document is walked with
executions drawn by lot; lists are followed to their end, also filtered down to little or nothing. {
        on(one)
    }

{
        requests:,} requests, none answered with 500 or more. Sequential scans of tables of 10,000 rows and more meanwhile
({one["scans"]["seconds"]} s): {counts(one["scans"]["tables"])}; in {
        one["idle"]["seconds"]
    } s without requests:
{counts(one["idle"]["tables"])}.

{
        table(
            (
                "address",
                "requests",
                "p50 ms",
                "p95 ms",
                "p99 ms",
                "largest answer, bytes",
                "status",
            ),
            rows,
        )
    }
"""


PARTS = ("p50", "p95")
# A worker runs so many commands at once, `commands_max` of its settings.
PLACES = 64


def _tenants(one: dict[str, Any]) -> str:
    ways = {
        "together": "nobody named: one queue for all",
        "shares": "both named in `NOETL_*_TENANTS`",
        "bounded": f"and the other has a quota of {one.get('running_max')} running",
        "burning1": "no other tenant, but a process that only computes",
        "burning2": "two such processes",
    }
    # Earlier runs had no quota, and nothing that only computes.
    rows = [
        (about, *_compare_ways(one[way]), _show_load(one[way], one["machine"]))
        for way, about in ways.items()
        if way in one
    ]
    parts = [f"{part} {when}" for when in ("alone", "beside") for part in PARTS]
    head = ("the quiet tenant, ms", *parts, *(f"{part} ratio" for part in PARTS), "load")
    refused = one["bounded"]["flood_refused_meanwhile"] if "bounded" in one else 0
    bounded_commands = one.get("running_max", 0) * one["items"]
    return f"""## Two tenants, one of which floods

One tenant asks for {one["flood"]:,} executions of {
        one["items"]
    } items each as fast as it can; the other runs {one["small"]}
executions of two steps, one after another, from submission to the end that the client sees. {
        on(one)
    }

{table(head, rows)}

Goal: a p95 ratio below 1.5. Of the flood {one["together"]["flood_open_at_the_end"]:,} and {
        one["shares"]["flood_open_at_the_end"]:,} executions were still open when the
quiet tenant's last had ended; all of it completed with the right sums.{
        f" Under the quota {refused:,} requests were refused meanwhile (429)." if refused else ""
    }
{
        f'''
Workers keep no place free for a waiting tenant: under the quota the flood has at most {bounded_commands} commands
in the {WORKERS * PLACES} places of {WORKERS} workers, so one is always free, and the ratio is no better.
'''
        if bounded_commands
        else ""
    }"""


def _show_load(way: dict[str, Any], machine: dict[str, Any]) -> str:
    """Tell how busy the machine was: earlier runs noted it for all ways together."""
    began, ended = way.get("load") or machine["load"]
    return f"{began} to {ended}"


def _compare_ways(way: dict[str, Any]) -> list[float]:
    times = [way[when][part] for when in ("alone", "beside") for part in PARTS]
    return times + [round(way["beside"][part] / way["alone"][part], 1) for part in PARTS]


SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "soak": page_soak.section,
    "concurrent": _concurrent,
    "sweep": _sweep,
    "tenants": _tenants,
    "console": page_console.section,
}
