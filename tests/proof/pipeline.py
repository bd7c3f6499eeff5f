"""A pipeline of ten steps under kills in every step, equal to the same pipeline left alone."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pyarrow as pa
from rich.console import Console
from tests.proof import running
from tests.support.parity import assert_parity
from tests.support.servers import s3_server, wait_until
from tests.support.spark import Cluster, standalone
from tests.support.stack import Stack, running_stack
from tests.support.ten_steps import kills
from tests.support.ten_steps.contents import (
    STEPS,
    Pipeline,
    keep_credentials,
    list_differences,
)
from tests.support.ten_steps.kills import Attacker, Kill, Victim

# Of a batch; NOETL_PROOF_ROWS says otherwise.
ROWS = int(os.environ.get("NOETL_PROOF_ROWS", "1000000"))
SEED = 20
BATCHES = (1, 2)
OPTIONS = ("--workers", "1", "--set", "WORKER_SPARK_CODE_ALLOWED=true")
# Variables of a worker that belong to it alone.
ONLY_ITS = {"NOETL_WORKER_HEALTH_PORT", "NOETL_WORKER_INSTANCE"}

console = Console(width=200)


def prove(folder: Path) -> dict[str, Any]:
    """Run the pipeline twice in peace and twice under kills; fail unless both left the same."""
    with s3_server(folder) as s3, running_cluster(folder) as (stack, cluster, options):
        keep_credentials(stack, s3)
        calm = Pipeline(stack, s3, "calm", rows=ROWS)
        usual, calm_s = run_in_peace(calm, BATCHES)
        wanted = calm.read_all()
        killed = Pipeline(stack, s3, "killed", rows=ROWS)
        plan = kills.plan_kills(STEPS * len(BATCHES), seed=SEED)
        attacker = Attacker(stack, options=options, seed=SEED, cluster=cluster)
        began = time.monotonic()
        made = run_under_kills(killed, plan, usual, attacker)
        killed_s = time.monotonic() - began
        assert_equal(killed, wanted)
    return {
        "rows": ROWS,
        "counts": {name: len(rows) for name, rows in wanted.items()},
        "seconds": {"calm": round(calm_s, 1), "killed": round(killed_s, 1)},
        "kills": msgspec.to_builtins(made),
    }


@contextmanager
def running_cluster(folder: Path) -> Iterator[tuple[Stack, Cluster, tuple[str, ...]]]:
    """A stack whose worker's Spark is a cluster of two executors, and the stack's options."""
    with standalone(folder / "spark") as cluster:
        options = (*OPTIONS, "--set", f"WORKER_SPARK_MASTER={cluster.master}")
        with running_stack(folder / "stack", *options) as stack:
            pid = stack.pid("worker-1")
            assert pid is not None, "the worker runs"
            variables = psutil.Process(pid).environ().items()
            cluster.start(
                {
                    name: value
                    for name, value in variables
                    if name.startswith("NOETL_WORKER_") and name not in ONLY_ITS
                }
            )
            yield stack, cluster, options


def run_in_peace(
    pipeline: Pipeline, batches: tuple[int, ...]
) -> tuple[list[dict[str, float]], float]:
    """Run each batch; return the seconds of each step of each run, and those of all."""
    pipeline.prepare()
    times, began = [], time.monotonic()
    for batch in batches:
        pipeline.add_orders(batch)
        stack = pipeline.stack
        execution_id = running.begin(stack, pipeline.path, {"batch": batch})
        await_end(stack, execution_id)
        assert_parity(stack, execution_id)
        times.append({step: kills.time_step(stack, execution_id, step) for step in STEPS})
        console.print(f"calm run of batch {batch}", times[-1])
    return times, time.monotonic() - began


def run_under_kills(
    pipeline: Pipeline,
    plan: list[tuple[str, Victim]],
    usual: list[dict[str, float]],
    attacker: Attacker,
) -> list[Kill]:
    """Run a batch for each round of the plan, with its kills; return what was killed."""
    pipeline.prepare()
    made: list[Kill] = []
    # In the first run the session of Spark was cold.
    least = {step: min(times[step] for times in usual) for step in STEPS}
    for batch in range(1, len(usual) + 1):
        pipeline.add_orders(batch)
        execution_id = running.begin(pipeline.stack, pipeline.path, {"batch": batch})
        for step, victim in _take_round(plan, len(made)):
            made.append(attacker.attack(execution_id, step, victim, usual_s=least[step]))
            console.print(msgspec.to_builtins(made[-1]))
        await_end(pipeline.stack, execution_id)
        assert_parity(pipeline.stack, execution_id)
        verify_replay(pipeline.stack, execution_id)
    return made


def verify_replay(stack: Stack, execution_id: str) -> None:
    """Let the command line compare an execution's replay with what is shown of it."""
    evidence = str(stack.folder.parent / f"evidence-{execution_id}")
    command = [sys.executable, "-m", "noetl_cli", "replay", "verify", execution_id]
    environ = {"NOETL_HOME": str(stack.folder), "HOME": str(stack.folder.parent)}
    done = subprocess.run(  # noqa: S603 - our own command line
        [*command, "--output", evidence], check=False, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _take_round(plan: list[tuple[str, Victim]], start: int) -> list[tuple[str, Victim]]:
    """Return the kills of one run: the steps of the plan from a place on, while they go forward."""
    found: list[tuple[str, Victim]] = []
    for step, victim in plan[start:]:
        if found and STEPS.index(step) < STEPS.index(found[-1][0]):
            break
        found.append((step, victim))
    return found


def await_end(stack: Stack, execution_id: str) -> None:
    """Wait until the ledger says that an execution has ended, which must be well."""
    ends: list[str] = []

    def is_over() -> bool:
        time.sleep(0.2)
        ends.extend(kills.list_ends(stack, execution_id))
        return bool(ends)

    wait_until(is_over, timeout_s=kills.PATIENCE_S, what="the end of the run")
    assert ends == ["playbook.completed"], running.status(stack, execution_id)


def assert_equal(pipeline: Pipeline, wanted: dict[str, pa.Table]) -> None:
    """Compare all that a pipeline has left with what the calm one has left."""
    differences = list_differences(pipeline, wanted)
    assert not differences, "\n".join(differences)
    strays = pipeline.list_stray_files()
    assert not strays, strays


def section(found: dict[str, Any]) -> str:
    """Write what was found."""
    lines = [
        f"| {number} | {kill['step']} | {kill['victim']} | {kill['moment_s']} of {kill['usual_s']} s "
        f"| {kill['process_count']} | {'yes' if kill['has_hit'] else 'no'} | {kill['what']} | {kill['recovered_s']} s |"
        for number, kill in enumerate(found["kills"], 1)
    ]
    hits = sum(kill["has_hit"] for kill in found["kills"])
    counts = ", ".join(f"{name} {count:,}" for name, count in found["counts"].items())
    seconds = found["seconds"]
    return f"""Ten steps from CSV in a bucket over checked Parquet, joins, Iceberg, Python on DataFrames, DuckDB, PostgreSQL and an
increment that adds, to a report in Delta, on a standalone cluster of two executors; two runs of {found["rows"]:,} orders, the
second with corrections of the first.
One kill in each step of each run, {len(found["kills"])} in all, {hits} while the step ran; step and moment are those that the ledger
shows and the lot chooses. Afterwards every table, file and state equals that of the same two runs without kills, read with
clients of others, no file of a dead attempt is left, and replay and projections agree. The runs took {seconds["calm"]} s, and {seconds["killed"]} s under kills.

Rows: {counts}.

| | step | killed | moment, and the calm step | processes | while it ran | what happened | step ended after |
|---|---|---|---|---:|---|---|---:|
{chr(10).join(lines)}
"""
