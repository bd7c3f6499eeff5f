"""A worker's memory while CSV in a bucket becomes Parquet by day, or a table: up to 20,000,000 rows."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import asyncpg
import duckdb
import obstore
from tests.proof import running
from tests.support.buckets import open_bucket
from tests.support.servers import S3Server, s3_server
from tests.support.stack import Stack, running_stack
from tests.support.ten_steps.contents import keep_credentials

# Buffers are as full as they get with ten million rows; twice as many may take no more.
ROWS = (1_000_000, 10_000_000, 20_000_000)
# So many rows a file, as a system that exports every hour leaves them.
FILE_ROWS = 1_000_000
DAYS = 20
MORE_MIB_MAX = 100
COLUMNS = "id BIGINT, day DATE, customer INT, amount DECIMAL(9,2), note STRING"
MAKE_ROWS = f"""
COPY (
    SELECT range AS id, DATE '2026-01-01' + (range % {DAYS})::INT AS day, (range % 99991)::INT AS customer,
           ((range % 900000) / 100.0)::DECIMAL(9, 2) AS amount, 'note ' || range AS note
    FROM range($first, $first + $count)
) TO '$file' (HEADER)
"""  # noqa: S608 - our own words
HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: WAY, path: memory/WAY}
workload: {rows: 0}
workflow:
  - step: move
    tool: TOOL
"""
COUNTED = """\
    next: {arcs: [{step: counted}]}
  - step: counted
    tool:
      kind: duckdb
      inputs: {t: {path: "s3://BUCKET/WAY-{{ workload.rows }}/", auth: lake}}
      query: SELECT count(*) AS n, sum(id)::BIGINT AS total, count(DISTINCT day) AS days FROM t
    set: {ctx.counted: "{{ counted.rows[0] }}"}
"""
SOURCE = (
    f"""{{path: "s3://BUCKET/{{{{ workload.rows }}}}/*.csv", auth: lake, schema: "{COLUMNS}"}}"""
)
FILES = """{path: "s3://BUCKET/WAY-{{ workload.rows }}/", auth: lake, partition_by: [day]}"""
TOOLS = {
    "duckdb": "{kind: duckdb, inputs: {r: SOURCE}, query: SELECT * FROM r, output: FILES}",
    "spark": "{kind: spark, inputs: {r: SOURCE}, sql: SELECT * FROM r, output: FILES}",
    "transfer": "{kind: transfer, source: SOURCE, target: FILES}",
    "table": "{kind: transfer, source: SOURCE, target: {type: postgres, auth: pg_target, table: moved}}",
}
TABLE = "CREATE TABLE moved (id bigint, day date, customer int, amount numeric(9, 2), note text)"
COUNT = "SELECT count(*) AS n, sum(id)::bigint AS total, count(DISTINCT day) AS days FROM moved"
ABOUT = {
    "duckdb": "`duckdb` to Parquet by day",
    "spark": "`spark` to Parquet by day",
    "transfer": "`transfer` to Parquet by day",
    "table": "`transfer` to a table of PostgreSQL",
}


def prove(folder: Path) -> dict[str, Any]:
    """Move all numbers of rows in each way, each way in a stack whose worker is new."""
    with s3_server(folder) as s3:
        for rows in ROWS:
            _put_files(s3, rows)
        found = {way: _prove_way(folder / way, s3, way) for way in TOOLS}
    return {"by_way": found}


def _prove_way(folder: Path, s3: S3Server, way: str) -> dict[str, Any]:
    by_rows: dict[str, Any] = {}
    with running_stack(folder, "--workers", "1") as stack:
        keep_credentials(stack, s3)
        path = running.register(stack, _write_playbook(way, bucket=s3.bucket))
        for rows in ROWS:
            _prepare_table(stack, way)
            ran = running.run(stack, path, rows=rows)
            counted = ran.variables["counted"] if way != "table" else _count_table(stack)
            wanted = {"n": rows, "total": rows * (rows - 1) // 2, "days": DAYS}
            assert counted == wanted, (way, counted, wanted)
            by_rows[str(rows)] = {"seconds": ran.seconds, "memory_mib": ran.memory_mib}
    less, more = (by_rows[str(rows)]["memory_mib"]["worker"] for rows in ROWS[-2:])
    assert more - less < MORE_MIB_MAX, (way, by_rows)
    return by_rows


def _write_playbook(way: str, *, bucket: str) -> str:
    text = HEAD if way == "table" else HEAD + COUNTED
    words = {"TOOL": TOOLS[way], "SOURCE": SOURCE, "FILES": FILES, "WAY": way, "BUCKET": bucket}
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _put_files(s3: S3Server, rows: int) -> None:
    bucket = open_bucket(s3)
    for first in range(0, rows, FILE_ROWS):
        with tempfile.NamedTemporaryFile(suffix=".csv") as file, duckdb.connect() as connection:
            values = {"$first": str(first), "$count": str(FILE_ROWS), "$file": file.name}
            statement = MAKE_ROWS
            for parameter, value in values.items():
                statement = statement.replace(parameter, value)
            connection.execute(statement)
            obstore.put(bucket, f"{rows}/{first}.csv", Path(file.name))


def _prepare_table(stack: Stack, way: str) -> None:
    if way == "table":
        asyncio.run(_ask_target(stack, "DROP TABLE IF EXISTS moved"))
        asyncio.run(_ask_target(stack, TABLE))


def _count_table(stack: Stack) -> dict[str, Any]:
    (row,) = asyncio.run(_ask_target(stack, COUNT))
    return dict(row)


async def _ask_target(stack: Stack, statement: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(stack.url("target"))
    try:
        rows: list[asyncpg.Record] = await connection.fetch(statement)
        return rows
    finally:
        await connection.close()


def section(found: dict[str, Any]) -> str:
    """Write what was found."""
    lines = "\n".join(
        f"| {ABOUT[way]} | {int(rows):,} | {one['seconds']} | {one['memory_mib']['worker']} "
        f"| {one['memory_mib'].get('java', '')} |"
        for way, by_rows in found["by_way"].items()
        for rows, one in by_rows.items()
    )
    return f"""CSV files of {FILE_ROWS:,} rows in a bucket, moved in each way by a worker of its own; count, sum and days of what was
written are right. Memory is the most that the worker and its children held, looked at once a second, Spark's Java apart. It
grows until sessions and buffers are as large as they get; from {ROWS[-2]:,} rows to {ROWS[-1]:,} by less than {MORE_MIB_MAX} MiB.

| way | rows | seconds | worker, MiB | Java, MiB |
|---|---:|---:|---:|---:|
{lines}"""
