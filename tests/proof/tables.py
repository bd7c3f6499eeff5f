"""Half a gigabyte of Parquet, written by one worker and counted in another by DuckDB and Spark."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psutil
from msgspec import convert
from tests.proof import peaks, running
from tests.support.stack import Stack, running_stack

from noetl_contracts import codec, spread_table
from noetl_contracts.payloads import PayloadRef
from noetl_storage.payloads.factory import open_payloads

MEBIBYTE = 2**20
ROWS = 1_000_000
STORED_BYTES_MIN = 500 * MEBIBYTE
HELD_MIB_MAX = 300
# Eight texts of 128 digits a row, which pack badly, as real text in Parquet does not.
PLAYBOOK = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: tables, path: proof/tables}}
workflow:
  - step: write
    spec: {{pool: writers}}
    tool:
      kind: duckdb
      database: ":memory:"
      query: |
        SELECT range AS id,
               {", ".join(f"sha256('{n}-' || range) || sha256('{n}+' || range) AS t{n}" for n in range(8))}
        FROM range(1, {ROWS + 1})
      output: {{format: parquet}}
    next: {{arcs: [{{step: by_duckdb}}]}}
  - step: by_duckdb
    spec: {{pool: readers}}
    tool:
      kind: duckdb
      database: ":memory:"
      inputs: {{t: "{{{{ write }}}}"}}
      query: "SELECT count(*) AS n, sum(id)::bigint AS total, sum(length(t3))::bigint AS letters FROM t"
    set: {{ctx.by_duckdb: "{{{{ by_duckdb.rows[0] }}}}"}}
    next: {{arcs: [{{step: by_spark}}]}}
  - step: by_spark
    spec: {{pool: readers}}
    tool:
      kind: spark
      inputs: {{t: "{{{{ write }}}}"}}
      sql: SELECT count(*) AS n, sum(id) AS total, sum(length(t3)) AS letters FROM t
    set: {{ctx.by_spark: "{{{{ by_spark.rows[0] }}}}"}}
"""  # noqa: S608 - our own words
WANTED = {"n": ROWS, "total": ROWS * (ROWS + 1) // 2, "letters": 128 * ROWS}


def prove(folder: Path) -> dict[str, Any]:
    """Write, count twice, and look at the most that each worker ever held."""
    pools = ("--pool", "writers=1", "--pool", "readers=1")
    with running_stack(folder / "stack", "--workers", "0", *pools, "--no-s3") as stack:
        path = running.register(stack, PLAYBOOK)
        ran = running.run(stack, path)
        held = {name: _outside_spark(stack, name) for name in _workers(stack)}
        parts, stored_bytes = asyncio.run(_stored(stack, ran.execution_id))
    assert ran.variables == {"by_duckdb": WANTED, "by_spark": WANTED}, ran.variables
    assert stored_bytes >= STORED_BYTES_MIN, (stored_bytes, held)
    parts_of = {name: ran.memory_mib[name.rpartition("-")[0]] for name in held}
    assert max(held.values()) < HELD_MIB_MAX, (parts_of, held)
    return {
        "rows": ROWS,
        "parts": parts,
        "stored_mib": stored_bytes // MEBIBYTE,
        "held_mib": parts_of,
        "high_water_mib": held,
        **{name: getattr(ran, name) for name in ("seconds", "cpu_s", "memory_mib")},
    }


def _workers(stack: Stack) -> list[str]:
    return [name for name in stack.state["processes"] if "worker" in name]


def _outside_spark(stack: Stack, name: str) -> int:
    """The sum of what a worker and its own children held at most, each at its own worst moment."""
    pid = stack.pid(name)
    assert pid is not None
    return sum(peaks.high_water_mib(item) for item in _own(psutil.Process(pid)))


def _own(process: psutil.Process) -> Iterator[int]:
    """Name a process and what it started, without Spark's Java and what that started."""
    yield process.pid
    for child in process.children():
        if child.name() != peaks.JAVA and child.status() != psutil.STATUS_ZOMBIE:
            yield from _own(child)


async def _stored(stack: Stack, execution_id: str) -> tuple[int, int]:
    """Count the parts of the table, and the bytes that lie in the store."""
    db = await asyncpg.connect(stack.url("postgres_reader"))
    try:
        kept = await db.fetchval(
            "SELECT result FROM noetl.event WHERE execution_id = $1 AND event_type = 'call.done'"
            " AND node_name = 'write'",
            int(execution_id),
        )
    finally:
        await db.close()
    ref = convert(codec.decode_json(kept.encode())["reference"], PayloadRef)
    async with open_payloads(stack.url("payloads")) as store:
        found = spread_table.find_spread_table(
            codec.decode_json(await store.read_payload(ref)), owner=ref
        )
    assert found is not None
    return len(found.parts), sum(part.payload_bytes for part in found.parts)


def section(found: dict[str, Any]) -> str:
    """Write what was found."""
    held = "\n".join(
        f"| {name} | {mib} | {found['high_water_mib'][name]} |"
        for name, mib in found["held_mib"].items()
    )
    return f"""A DuckDB task in one pool writes {found["rows"]:,} rows as {found["stored_mib"]} MiB of Parquet in {found["parts"]} parts, each
stored while the query runs. A worker of another pool counts them and adds up two columns with DuckDB, which scans the
parts where they lie, and with Spark, whose executors read them. Both find what was written. Each worker with its
children, without Spark's Java and Python processes, has to stay below {HELD_MIB_MAX} MiB by the kernel's own mark of a process
(`VmHWM`), which counts the pages of libraries in full for each process: a worker that has done nothing yet has about
140 of them. The other column was looked at once a second, with pages that processes share divided between them.

| worker | MiB at most | sum of `VmHWM`, MiB |
|---|---:|---:|
{held}

{running.costs(found)}"""
