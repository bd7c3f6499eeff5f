"""What a Spark task takes beside Spark alone: a new session, a small query, a script over ten million rows."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
from tests.bench.client import HEAD, Client
from tests.bench.page_workloads import told
from tests.bench.spark_alone import MASTER, SparkTask, SparkTime
from tests.bench.spread import spread
from tests.support.stack import Stack, running_stack

ROWS_OF_SCRIPT = 10_000_000
SMALL_ROWS = 100
STARTS, SCRIPTS, QUERIES = 3, 3, 15
WARM_ROUNDS = 2
SQL = "SELECT n % 10 AS k, count(*) AS rows, sum(n) AS total FROM t GROUP BY 1 ORDER BY 1"
SCRIPT = """
def main(spark, inputs, params):
    from pyspark.sql import functions as f
    rows = spark.range(params["rows"]).selectExpr("id", "id % 1000 AS k", "sha2(string(id), 256) AS digest")
    groups = rows.groupBy("k").agg(f.count("*").alias("rows"), f.sum("id").alias("total"), f.max("digest").alias("last"))
    return groups.orderBy("k")
"""
# From its command, as the worker tells a start after half a second, to the end that it reports.
TASK_TIME = """
SELECT extract(epoch FROM max(created_at) FILTER (WHERE event_type = 'call.done')
  - min(created_at) FILTER (WHERE event_type = 'command.issued'))::float8
FROM noetl.event WHERE execution_id = $1 AND node_name = 'ask'
"""
OPTIONS = ("--workers", "1", "--set", "WORKER_SPARK_CODE_ALLOWED=true")
CHECK = {
    "ctx.rows": "{{ ask.row_count }}",
    "ctx.total": "{{ ask.rows | map(attribute='total') | sum }}",
}
ROWS = [{"n": number} for number in range(SMALL_ROWS)]
TASKS = {
    "session": SparkTask(sql="SELECT 1 AS total"),
    "query": SparkTask(sql=SQL, rows=ROWS),
    "script": SparkTask(code=SCRIPT, params={"rows": ROWS_OF_SCRIPT}),
}
TOOLS: dict[str, dict[str, Any]] = {
    "session": {"kind": "spark", "sql": TASKS["session"].sql},
    "query": {"kind": "spark", "inputs": {"t": ROWS}, "sql": SQL},
    "script": {"kind": "spark", "params": TASKS["script"].params, "code": SCRIPT},
}
# On a machine that does nothing else.
GOALS = {"session": "10 s in all", "query": "0.3 s", "script": "5 %"}


class SparkAlone:
    """A process with a session of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.start_s = self._read().seconds

    def run(self, task: SparkTask) -> SparkTime:
        """Run a task; return its seconds and rows."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(task) + b"\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> SparkTime:
        assert self._process.stdout is not None
        return msgspec.json.decode(self._process.stdout.readline(), type=SparkTime)


@contextmanager
def open_spark_alone(folder: Path) -> Iterator[SparkAlone]:
    """Start Spark by itself, and end it with the block."""
    command = [sys.executable, "-m", "tests.bench.spark_alone", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own program
        yield SparkAlone(process)
        assert process.stdin is not None
        process.stdin.close()


class SparkTasks:
    """Runs single Spark tasks on a stack."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._client = Client(stack)
        for name, tool in TOOLS.items():
            step = msgspec.json.encode({"step": "ask", "tool": tool, "set": CHECK}).decode()
            head = f"{HEAD}metadata: {{name: {name}, path: bench/{name}}}\n"
            self._client.register(f"{head}workflow:\n  - {step}\n")

    def run(self, name: str) -> SparkTime:
        """Run one of the tasks; return its own seconds and what its rows add up to."""
        execution_id = self._client.submit(f"bench/{name}")
        self._client.wait(execution_id)
        variables = self._client.read_variables(execution_id)
        seconds = asyncio.run(self._time_task(execution_id))
        return SparkTime(seconds=seconds, rows=variables["rows"], total=variables["total"])

    def run_in_new_worker(self, name: str) -> SparkTime:
        """Run a task in a worker that has no session yet."""
        self._stack.kill("worker-1")
        return self.run(name)

    async def _time_task(self, execution_id: str) -> float:
        connection = await asyncpg.connect(self._stack.url("postgres_reader"))
        try:
            return float(await connection.fetchval(TASK_TIME, int(execution_id)))
        finally:
            await connection.close()


def measure(root: Path) -> dict[str, Any]:
    """Run each task on a stack and by Spark alone, in turn; both must give the same."""
    seconds: dict[str, dict[str, list[float]]] = {
        name: {"alone": [], "noetl": []} for name in TASKS
    }
    with running_stack(root / "spark-stack", *OPTIONS) as stack:
        tasks = SparkTasks(stack)
        for turn in range(STARTS):
            with open_spark_alone(root / f"spark-{turn}") as alone:
                seconds["session"]["alone"].append(alone.start_s)
            seconds["session"]["noetl"].append(tasks.run_in_new_worker("session").seconds)
        with open_spark_alone(root / "spark") as alone:
            for name, rounds in (("query", QUERIES), ("script", SCRIPTS)):
                for turn in range(WARM_ROUNDS + rounds):
                    found = {"alone": alone.run(TASKS[name]), "noetl": tasks.run(name)}
                    assert found["alone"].sums == found["noetl"].sums, found
                    for who, time in found.items():
                        seconds[name][who] += [time.seconds] if turn >= WARM_ROUNDS else []
    return {
        "rows": ROWS_OF_SCRIPT,
        "small_rows": SMALL_ROWS,
        **{
            name: {who: spread(times, digits=3) for who, times in by_who.items()}
            for name, by_who in seconds.items()
        },
    }


def section(found: dict[str, Any]) -> str:
    """Write the figures for people."""
    names = {
        "session": "the first task of a worker, which starts the session",
        "query": f"a query over {found['small_rows']} rows, warm",
        "script": f"a script over {found['rows']:,} rows, warm",
    }
    rows = [_write_row(about, name, found[name]) for name, about in names.items()]
    return f"""## Spark tasks beside Spark alone

`{MASTER}` in the settings of a worker's session; a task's time is from its command to the end that the worker reports, that of
Spark alone from the script's first line to its last row. Both in turn, with equal results.

| what | Spark alone, s | a task, s | more | goal |
|---|---:|---:|---:|---:|
{chr(10).join(rows)}
"""


def _write_row(about: str, name: str, found: dict[str, Any]) -> str:
    alone, task = found["alone"]["median"], found["noetl"]["median"]
    more = f"{task / alone - 1:+.1%}" if name == "script" else f"{task - alone:+.2f} s"
    return f"| {about} | {told(found['alone'])} | {told(found['noetl'])} | {more} | {GOALS[name]} |"
