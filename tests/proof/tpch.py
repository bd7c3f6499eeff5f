"""TPC-H through `kind: spark` from Parquet in a bucket, PostgreSQL and Iceberg, beside DuckDB and PySpark."""

import asyncio
import subprocess
import sys
from operator import itemgetter
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import obstore
from tests.proof import running
from tests.support import tpch
from tests.support.asking import http
from tests.support.buckets import account_of, open_bucket
from tests.support.servers import S3Server, s3_server
from tests.support.stack import Stack, running_stack

SCALE = 1.0
PARTITIONS = 4
SOURCES = ("parquet", "postgres", "iceberg")
STEP_TIMES = """
SELECT node_name AS step,
       extract(epoch FROM max(created_at) FILTER (WHERE event_type = 'call.done')
         - min(created_at) FILTER (WHERE event_type = 'command.issued'))::float8 AS seconds
FROM noetl.event WHERE execution_id = $1 AND node_name LIKE 'q__' GROUP BY node_name
"""
HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: NAME, path: proof/NAME}
workflow:
"""
# The session is warm before the first query, as that of plain PySpark is.
WARM = """\
  - step: warm
    tool: {kind: spark, sql: SELECT 1 AS n}
    next: FIRST
"""


def prove(folder: Path) -> dict[str, Any]:
    """Make the tables, load them into each source, ask each query, and compare the answers."""
    files = tpch.make_tables(folder / "tables", SCALE)
    queries = tpch.read_queries(SCALE)
    wanted = tpch.answer_queries(files, queries)
    plain = time_plain_spark(folder, files, queries)
    with s3_server(folder) as s3, running_stack(folder / "stack", "--workers", "1") as stack:
        load_tables(stack, s3, files)
        seconds = {
            source: ask_queries(stack, s3, source, queries, wanted, folder) for source in SOURCES
        }
    return {
        "scale": SCALE,
        "rows": {name: len(rows) for name, rows in wanted.items()},
        "seconds": {"pyspark": plain, **seconds},
    }


def load_tables(stack: Stack, s3: S3Server, files: Path) -> None:
    """Put the files into a bucket, and let NoETL copy them into PostgreSQL and Iceberg."""
    bucket = open_bucket(s3)
    for table in tpch.TABLES:
        obstore.put(bucket, f"tpch/{table}.parquet", files / f"{table}.parquet")
    running.keep(stack, "tpch_db", stack.url("target"))
    body = {"name": "lake", "type": "s3", "data": account_of(s3)}
    answer = http.post(f"{stack.url('api')}/api/credentials", json=body, timeout=10)
    assert answer.is_success, answer.text
    asyncio.run(_execute(stack.url("target"), (tpch.QUERIES / "tables.sql").read_text()))
    steps = []
    for table in tpch.TABLES:
        source = describe_input("parquet", table, s3.bucket)
        into = {"type": "postgres", "auth": "tpch_db", "table": table}
        tool = {"kind": "transfer", "engine": "spark", "source": source, "target": into}
        steps.append((f"{table}_postgres", tool))
        tool = {
            "kind": "spark",
            "inputs": {"t": source},
            "sql": "SELECT * FROM t",
            "output": describe_input("iceberg", table, s3.bucket),
        }
        steps.append((f"{table}_iceberg", tool))
    running.run(stack, running.register(stack, write_playbook("tpch-load", steps)))


def describe_input(source: str, table: str, bucket: str) -> dict[str, Any]:
    """Write how a playbook names a table of a source."""
    if source == "postgres":
        return {"auth": "tpch_db", "table": table, "partitions": PARTITIONS}
    if source == "iceberg":
        place = {"catalog": "tpch_db", "warehouse": f"s3://{bucket}/warehouse"}
        return {"iceberg": {**place, "table": f"tpch.{table}"}, "auth": "lake"}
    return {"path": f"s3://{bucket}/tpch/{table}.parquet", "auth": "lake"}


def write_playbook(name: str, steps: list[tuple[str, dict[str, Any]]]) -> str:
    """Write a playbook of steps, one after the other, in a session that is warm."""
    text = HEAD.replace("NAME", name) + WARM.replace("FIRST", steps[0][0])
    following = [step for step, _ in steps[1:]]
    for (step, tool), after in zip(steps, [*following, None], strict=True):
        text += f"  - step: {step}\n    tool: {msgspec.json.encode(tool).decode()}\n"
        text += f"    next: {after}\n" if after else ""
    return text


def ask_queries(
    stack: Stack,
    s3: S3Server,
    source: str,
    queries: dict[str, str],
    wanted: dict[str, list[tpch.Row]],
    folder: Path,
) -> dict[str, float]:
    """Ask each query of one source; fail unless its answer is DuckDB's; return the seconds."""
    steps = []
    for name, text in queries.items():
        inputs = {
            table: describe_input(source, table, s3.bucket) for table in tpch.list_tables(text)
        }
        steps.append((name, {"kind": "spark", "inputs": inputs, "sql": text}))
    path = running.register(stack, write_playbook(f"tpch-{source}", steps))
    ran = running.run(stack, path)
    for name, rows in wanted.items():
        found = read_result(stack, ran.execution_id, name, folder / f"{source}-{name}.json")
        assert (said := tpch.find_difference(found, rows)) is None, f"{source} {name}: {said}"
    return asyncio.run(_read_seconds(stack, ran.execution_id))


def read_result(stack: Stack, execution_id: str, step: str, file: Path) -> list[tpch.Row]:
    """Return the rows of a step as its user saves them."""
    command = [sys.executable, "-m", "noetl_cli", "result", execution_id, step, "--save", str(file)]
    environ = {"NOETL_HOME": str(stack.folder), "HOME": str(stack.folder.parent)}
    subprocess.run(command, check=True, env=environ, capture_output=True)  # noqa: S603 - our own command line
    saved = msgspec.json.decode(file.read_bytes())
    rows: list[tpch.Row] = saved["rows"] if isinstance(saved, dict) else saved
    return rows


def time_plain_spark(folder: Path, files: Path, queries: dict[str, str]) -> dict[str, float]:
    """Ask the queries of Spark itself, with its own reader and a worker's settings."""
    request = {"folder": str(folder / "plain"), "files": str(files), "queries": queries}
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.plain_spark"],
        check=True,
        input=msgspec.json.encode(request),
        stdout=subprocess.PIPE,
    )
    found: dict[str, float] = msgspec.json.decode(done.stdout.splitlines()[-1])
    return found


async def _execute(dsn: str, text: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(text)
    finally:
        await connection.close()


async def _read_seconds(stack: Stack, execution_id: str) -> dict[str, float]:
    connection = await asyncpg.connect(stack.url("postgres_reader"))
    try:
        rows = await connection.fetch(STEP_TIMES, int(execution_id))
    finally:
        await connection.close()
    return {row["step"]: round(row["seconds"], 2) for row in sorted(rows, key=itemgetter("step"))}


def section(found: dict[str, Any]) -> str:
    """Write what was found."""
    seconds = found["seconds"]
    columns = ("pyspark", *SOURCES)
    lines = [
        f"| {name} | {count:,} | {' | '.join(f'{seconds[one][name]:.2f}' for one in columns)} |"
        for name, count in found["rows"].items()
    ]
    sums = " | ".join(f"{sum(seconds[one].values()):.1f}" for one in columns)
    return f"""The 22 queries of TPC-H at scale factor {found["scale"]:g} as `kind: spark` steps, from Parquet in a bucket, from PostgreSQL
({PARTITIONS} partitions a table) and from Iceberg, which NoETL itself has loaded from the Parquet. Each answer is DuckDB's over
the same files: all values exactly and in order, averages and quotients to six digits. Seconds are from the command of a step
to its end, in a warm session. Plain PySpark has the settings of a worker's session and reads the files from the disk
with Spark's own reader.

| query | rows | plain PySpark, Parquet on disk | Parquet, S3 | PostgreSQL | Iceberg, S3 |
|---|---:|---:|---:|---:|---:|
{chr(10).join(lines)}
| all | | {sums} |
"""
