"""Rows a second between PostgreSQL and Arrow, beside other clients: 12 columns of mixed types.

`python -m tests.bench.postgres_columns postgresql://user@host/database` makes the table
`noetl_bench_mixed` there, and prints rows a second, and rows a second of CPU time of this process.
Reads are what one task of Spark does, writes its texts for `COPY`. ConnectorX is measured where it
is installed.
"""

import argparse
import importlib
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import adbc_driver_postgresql.dbapi
import pyarrow as pa
from msgspec import Struct
from rich.console import Console

from noetl_worker.spark.postgres import read_columns, read_plan
from noetl_worker.spark.postgres.read_request import ReadRequest
from noetl_worker.spark.postgres.server_connection import open_arrow_session
from noetl_worker.spark.postgres.table_copy import CopyColumn, encode_csv

ROWS = 1_000_000
ROUNDS = 3
TABLE = "noetl_bench_mixed"
MAKE = """
create table noetl_bench_mixed as
select
    i::bigint as id, (i % 1000)::int as qty, (i % 2 = 0) as flag,
    (i * 1.25)::numeric(18, 4) as amount, (i / 7.0)::float8 as ratio, ('name ' || i)::text as name,
    md5(i::text)::uuid as uid, timestamp '2024-01-01' + i * interval '1 second' as seen_at,
    timestamptz '2024-01-01' + i * interval '1.5 second' as sent_at,
    date '2020-01-01' + (i % 1000)::int as day, jsonb_build_object('k', i) as doc,
    array[i, i + 1]::int[] as tags
from generate_series(1, {rows}) i
"""
CATEGORIES = {"amount": "N", "ratio": "N", "seen_at": "D", "sent_at": "D", "tags": "A"}


class Measurement(Struct, frozen=True, kw_only=True):
    """Rows of one turn, in seconds of the clock and of this process's CPU time."""

    rows: int
    seconds: float
    cpu_s: float


def measure_turn(turn: Callable[[], int]) -> Measurement:
    """Return the quickest of several turns."""
    found = []
    for _ in range(ROUNDS):
        began, began_cpu = time.perf_counter(), time.process_time()
        rows = turn()
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
        found.append(Measurement(rows=rows, seconds=seconds, cpu_s=cpu_s))
    return min(found, key=lambda one: one.cpu_s)


def read_share(dsn: str) -> Iterator[pa.RecordBatch]:
    """Read the table as one task does."""
    with open_arrow_session({"dsn": dsn}, credential="bench", about="bench") as session:
        session.begin_reading(None)
        request = ReadRequest(name="bench", query=f"table {TABLE}", table=[TABLE])
        plan = read_plan.plan_read(session, request, snapshot="", about="bench")
        for batch in session.read_batches(plan.build_statement(plan.conditions[0])):
            yield from read_columns.convert_batch(batch, plan.columns, about="bench")


def read_with_driver(dsn: str) -> int:
    """Read the table by the driver alone, numerics and uuids as they come."""
    with adbc_driver_postgresql.dbapi.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(f"select * from {TABLE}")  # noqa: S608 - a constant
        return sum(batch.num_rows for batch in cursor.fetch_record_batch())


def read_with_connectorx(dsn: str) -> int:
    """Read the table into Arrow by ConnectorX, whose numerics are floats."""
    client = importlib.import_module("connectorx")
    return int(client.read_sql(dsn, f"select * from {TABLE}", return_type="arrow").num_rows)  # noqa: S608 - a constant


def make_table(dsn: str) -> None:
    """Make the table anew."""
    with (
        adbc_driver_postgresql.dbapi.connect(dsn, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"drop table if exists {TABLE}")
        cursor.execute(MAKE.format(rows=ROWS))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    dsn = parser.parse_args().dsn
    make_table(dsn)
    turns: dict[str, Callable[[], int]] = {
        "read: a task of Spark": lambda: sum(batch.num_rows for batch in read_share(dsn)),
        "read: ADBC alone": lambda: read_with_driver(dsn),
    }
    if find_spec("connectorx") is not None:
        turns["read: ConnectorX"] = lambda: read_with_connectorx(dsn)
    batches = list(read_share(dsn))
    columns = [
        CopyColumn(name=name, type="", category=CATEGORIES.get(name, ""))
        for name in batches[0].schema.names
    ]
    turns["write: texts for COPY"] = lambda: sum(
        batch.num_rows for batch in batches if encode_csv(batch, columns)
    )
    console = Console()
    for name, turn in turns.items():
        found = measure_turn(turn)
        console.print(
            f"{name:24} {found.rows / found.seconds:>12,.0f} rows/s "
            f"{found.rows / found.cpu_s:>12,.0f} rows a second of CPU"
        )


if __name__ == "__main__":
    main()
