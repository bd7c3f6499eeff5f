"""TPC-H: its tables as Parquet, its 22 queries, and DuckDB's answers to them."""

import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import duckdb

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
QUERIES = Path(__file__).parents[1] / "proof/tpch_queries"
# Averages and quotients of decimals have six digits in Spark, and are floats in DuckDB.
_ROUNDED = Decimal("1e-6")

Row = dict[str, Any]


def make_tables(folder: Path, scale: float) -> Path:
    """Write a Parquet file for each table; return their folder."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    scaled = ("parquet", "--scale-factor", str(scale), "--num-threads", "1", "--quiet")
    subprocess.run([str(program), *scaled, "--output-dir", str(folder)], check=True)  # noqa: S603 - our own program
    return folder


def read_queries(scale: float) -> dict[str, str]:
    """Return the texts by name; one holds a share that depends on the scale."""
    texts = {file.stem: file.read_text() for file in sorted(QUERIES.glob("q*.sql"))}
    return {
        name: text.replace("FRACTION", f"{Decimal('0.0001') / Decimal(str(scale)):f}")
        for name, text in texts.items()
    }


def list_tables(query: str) -> list[str]:
    """Name the tables that a query reads."""
    words = set(query.replace(",", " ").replace(")", " ").split())
    return [table for table in TABLES if table in words]


def answer_queries(folder: Path, queries: dict[str, str]) -> dict[str, list[Row]]:
    """Let DuckDB answer the queries over the same files."""
    with duckdb.connect() as db:
        for table in TABLES:
            file = folder / f"{table}.parquet"
            db.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{file}')")  # noqa: S608 - our own words
        found = {}
        for name, text in queries.items():
            rows = db.execute(text)
            columns = [column[0] for column in rows.description or ()]
            found[name] = [dict(zip(columns, row, strict=True)) for row in rows.fetchall()]
        return found


def find_difference(rows: Sequence[Row], wanted: Sequence[Row]) -> str | None:
    """Say where rows differ from those that are wanted, in their order; None where they do not."""
    if len(rows) != len(wanted):
        return f"{len(rows)} rows, not {len(wanted)}"
    for number, (row, right) in enumerate(zip(rows, wanted, strict=True), 1):
        if row.keys() != right.keys() or not all(_is_equal(row[key], right[key]) for key in row):
            return f"row {number} is {row}, not {right}"
    return None


def _is_equal(value: Any, wanted: Any) -> bool:
    if value == wanted:
        return True
    if isinstance(wanted, date):
        return bool(str(value) == wanted.isoformat())
    try:
        left, right = Decimal(str(value)), Decimal(str(wanted))
    except InvalidOperation:
        return False
    is_rounded = isinstance(wanted, float)
    return abs(left - right) <= (max(_ROUNDED, _ROUNDED * abs(right)) if is_rounded else 0)
