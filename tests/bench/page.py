"""The report as a page for people."""

from typing import Any

from tests.bench import auditing


def page(report: dict[str, Any]) -> str:
    """Write `docs/benchmarks.md`."""
    series = [_pft(name, report["scale"], one) for name, one in report["pft"].items()]
    return "\n".join(
        [
            _head(report["machine"]),
            *series,
            _latency(report["latency"]),
            _tiers(report["tiers"]),
            _past(report["past"]),
            _projecting(report["projecting"]),
            auditing.section(report["auditing"]),
            _api(report["api"]),
        ]
    )


def _head(machine: dict[str, Any]) -> str:
    return f"""# Benchmarks

Written by `make bench`; repeat it with that command. Quote ratios: both sides of each were measured
in turn in this one run, on {machine["cores"]} cores and {machine["memory_gib"]} GiB, with client, fixture,
engine, PostgreSQL (fsync and synchronous_commit on), NATS and SeaweedFS on the same machine.
"""


def _pft(variant: str, scale: dict[str, Any], series: dict[str, Any]) -> str:
    ratio = series["efficiency"]
    rows = "\n".join(
        f"| {one['who']} | {one['requests']} | {one['seconds']} | {one['requests_per_s']} "
        f"| {_spent(one)} |"
        for one in series["rounds"]
    )
    engines = "\n".join(_lasting(one) for one in series["rounds"] if one["who"] == "engine")
    steady = "" if ratio["is_steady"] else " The floor's own times differed by more than 15 %."
    return f"""## PFT {variant.upper()}, {scale["facilities"]} facilities x {scale["patients"]} patients, profile `plain`, every engine run verified

| who | requests | seconds | requests/s | CPU seconds of the engine's processes and the fixture |
|---|---:|---:|---:|---|
{rows}

| events | about commands | frames | rows a frame | events a frame | connections to PostgreSQL | most memory, MiB |
|---:|---:|---:|---:|---:|---:|---|
{engines}

**Efficiency** (floor seconds / engine seconds): median **{ratio["median"]}**, least {ratio["least"]},
most {ratio["most"]}.{steady}
"""


def _lasting(one: dict[str, Any]) -> str:
    memory = ", ".join(f"{name} {mib}" for name, mib in one["memory_mib"].items())
    keys = ("events", "command_events", "frames", "rows_per_frame", "frame_events_per_frame")
    counts = " | ".join(str(one[key]) for key in (*keys, "connections"))
    return f"| {counts} | {memory} |"


def _latency(latency: dict[str, Any]) -> str:
    one, chain, small = latency["single_step"], latency["chain"], latency["small_executions"]
    loops = "\n".join(
        f"| a parallel loop of {loop['items']:,} no-op items, durable per item "
        f"| {loop['items_per_s']} items/s | {loop['planner_cpu_us_per_item']} us an item |"
        for loop in latency["loops"]
    )
    return f"""## Small things, warm, from submission to the end that the client sees

| what | figure | CPU of the planner and the API |
|---|---:|---:|
| one execution with one Python step, p50 / p95 | {one["p50_ms"]} / {one["p95_ms"]} ms | |
| a chain of {chain["steps"]} no-op steps | {chain["steps_per_s"]} steps/s | {chain["planner_cpu_us_per_step"]} us a step |
{loops}
| {small["executions"]:,} executions of one no-op step, all at once | {small["executions_per_s"]} executions/s | {small["planner_cpu_us_per_execution"]} us an execution |
"""


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
    return f"""## One projector on PostgreSQL, its messages in memory

| what | figure |
|---|---:|
| {one["events"]:,} events as fast as it goes | {one["events_per_s"]:,} events/s |
| CPU of the projector, of PostgreSQL | {one["projector_cpu_us_per_event"]}, {one["postgres_cpu_us_per_event"]} us an event |
| lag at {one["steady_events_per_s"]:,} events/s, p50 / p95 | {one["lag_p50_ms"]} / {one["lag_p95_ms"]} ms |
"""


def _api(one: dict[str, Any]) -> str:
    return f"""## An execution shown, with {one["events"]:,} events of {one["executions"]:,} executions in the ledger

| what | p50 / p95 / p99 |
|---|---:|
| `GET /api/executions/{{id}}`, one after another | {one["api_p50_ms"]} / {one["api_p95_ms"]} / {one["api_p99_ms"]} ms |
| the row alone, by its key | {one["query_p50_ms"]} / {one["query_p95_ms"]} / {one["query_p99_ms"]} ms |
"""


def _spent(one: dict[str, Any]) -> str:
    return ", ".join(f"{name} {cpu}" for name, cpu in one.get("cpu_s", {}).items() if cpu >= 0.1)
