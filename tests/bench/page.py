"""The report as a page for people; a series that was not run is not shown."""

from collections.abc import Callable
from typing import Any

from tests.bench import (
    admitting,
    answering,
    auditing,
    growth,
    page_peers,
    page_workloads,
    processors,
    reacting,
    retiring,
    spark_overheads,
    telemetry,
)
from tests.bench.page_workloads import told
from tests.bench.plots import FILES


def page(report: dict[str, Any]) -> str:
    """Write `benchmarks/benchmarks.md`."""
    parts = [_head(report)]
    parts += [show(report[name]) for name, show in SECTIONS.items() if name in report]
    parts += page_peers.peers(report)
    return "\n".join(parts)


def _head(report: dict[str, Any]) -> str:
    machine, kept = report["machine"], report.get("durability")
    promised = (
        f"PostgreSQL (fsync {kept['fsync']}, synchronous_commit {kept['synchronous_commit']}, "
        f"full_page_writes {kept['full_page_writes']}), NATS (JetStream syncs every {kept['sync_interval']})"
        if kept
        else "PostgreSQL, NATS"
    )
    drawn = "".join(
        f"\n![{about}]({name})\n" for name, (series, about) in FILES.items() if series in report
    )
    looked_at = {
        name: report[name]["processors"]
        for name in SECTIONS
        if "processors" in report.get(name, {})
    }
    turned = f"{processors.shown(looked_at)}\n" if looked_at else ""
    return f"""# Benchmarks

Written by `make bench`; repeat it with that command, or a part of it with `make bench ONLY="w1 w2"`. Quote
ratios: both sides of each were measured in turn in one run, on {machine["cores"]} cores and {machine["memory_gib"]} GiB, with
client, fixture, engine, {promised} and SeaweedFS on the same machine.
Where rounds are many, the median is told, and the least and the most in brackets. CPU is that of whole processes,
divided by the units of work; transactions are PostgreSQL's that wrote, and its log is counted in bytes, both with what
the services do in the background.
{turned}{drawn}"""


def _pft(found: dict[str, Any]) -> str:
    return "\n".join(_variant(name, found, item) for name, item in found["variants"].items())


def _variant(variant: str, scale: dict[str, Any], series: dict[str, Any]) -> str:
    ratio = series["efficiency"]
    rows = "\n".join(
        f"| {item['who']} | {item['requests']} | {item['seconds']} | {item['requests_per_s']} "
        f"| {_spent(item)} |"
        for item in series["rounds"]
    )
    engines = "\n".join(_lasting(item) for item in series["rounds"] if item["who"] == "engine")
    steady = "" if ratio["is_steady"] else " The floor's own times differed by more than 15 %."
    return f"""## PFT {variant.upper()}, {scale["facilities"]} facilities x {scale["patients"]} patients, {scale["workers"]} workers, profile `plain`, every engine run verified

| who | requests | seconds | requests/s | CPU seconds of the engine's processes and the fixture |
|---|---:|---:|---:|---|
{rows}

| events | about commands | frames | rows a frame | events a frame | transactions a request | log bytes a request | connections to PostgreSQL | most memory, MiB |
|---:|---:|---:|---:|---:|---:|---:|---:|---|
{engines}

**Efficiency** (floor seconds / engine seconds): median **{ratio["median"]}**, least {ratio["least"]},
most {ratio["most"]}.{steady}
"""


def _lasting(one: dict[str, Any]) -> str:
    memory = ", ".join(f"{name} {mib}" for name, mib in one["memory_mib"].items())
    # Runs of earlier commits did not look.
    if "control_plane_mib" in one:
        memory += f"; the control plane in all {one['control_plane_mib']}"
    keys = (
        *("events", "command_events", "frames", "rows_per_frame", "frame_events_per_frame"),
        *("transactions_each", "wal_bytes_each", "connections"),
    )
    counts = " | ".join(str(one[key]) for key in keys)
    return f"| {counts} | {memory} |"


def _spent(one: dict[str, Any]) -> str:
    return ", ".join(f"{name} {cpu}" for name, cpu in one.get("cpu_s", {}).items() if cpu >= 0.1)


def _tiers(one: dict[str, Any]) -> str:
    return f"""## Payloads

| a table of {one["megabytes"]} MiB, ready to be read | ms |
|---|---:|
| from a payload store that is a directory, digest checked | {one["store_ms"]} |
| mapped from the node's shared memory | {one["shared_ms"]} |

**Ratio**: {one["ratio"]}.
"""


def _past(past: dict[str, Any]) -> str:
    return f"""## Looking back, in CPU time of one core, over one cursor loop of {past["events"]:,} events

| what | figure |
|---|---:|
| folding a history to a state | {past["fold_events_per_cpu_s"]:,} events/s |
| replaying it with the rows of all surfaces | {past["replay_events_per_cpu_s"]:,} events/s |
| all of it, from events that are in memory | {past["replay_cpu_s"]} s |
| from a snapshot 1,000 events before the end instead | {past["snapshot_speed_up"]} times as fast |
| following its chain of checksums | {past["chain_events_per_cpu_s"]:,} events/s |
"""


def _projecting(one: dict[str, Any]) -> str:
    own, servers = one["projector_cpu_us_per_event"], one["postgres_cpu_us_per_event"]
    return f"""## One projector on PostgreSQL, its messages in memory

| what | figure |
|---|---:|
| {one["events"]:,} events as fast as it goes, {one["rounds"]} times | {told(one["events_per_s"])} events/s |
| CPU of the projector, of PostgreSQL | {told(own)}, {told(servers)} us an event |
| lag at {one["steady_events_per_s"]:,} events/s, p50 / p95 | {one["lag_p50_ms"]} / {one["lag_p95_ms"]} ms |
"""


def _api(one: dict[str, Any]) -> str:
    return f"""## An execution shown, with {one["events"]:,} events of {one["executions"]:,} executions in the ledger

| what | p50 / p95 / p99 |
|---|---:|
| `GET /api/executions/{{id}}`, one after another | {one["api_p50_ms"]} / {one["api_p95_ms"]} / {one["api_p99_ms"]} ms |
| the row alone, by its key | {one["query_p50_ms"]} / {one["query_p95_ms"]} / {one["query_p99_ms"]} ms |
"""


def _waves(one: dict[str, Any]) -> str:
    io, wave = one["io"], one["spark"]
    return f"""## Spark's waves, {one["frames"]} frames of {one["rows"]:,} rows, {one["body"]}

| lane | CPU of all that takes part, ms a frame | ms a frame |
|---|---:|---:|
| io | {io["cpu_ms"]} | {io["wall_ms"]} |
| waves | {wave["cpu_ms"]} | {wave["wall_ms"]} |

Every size and body: [Spark](reference/spark.md).
"""


SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "pft": _pft,
    **page_workloads.SECTIONS,
    "answering": answering.section,
    "tiers": _tiers,
    "past": _past,
    "projecting": _projecting,
    "admitting": admitting.section,
    "auditing": auditing.section,
    "retiring": retiring.section,
    "reacting": reacting.section,
    "telemetry": telemetry.section,
    "growth": growth.section,
    "waves": _waves,
    "spark": spark_overheads.section,
    "api": _api,
}
