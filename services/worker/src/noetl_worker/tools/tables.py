"""Rows and tables: JSON values into Arrow, Arrow into JSON values, files into Arrow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from noetl_contracts import codec
from noetl_storage import arrow_values, row_tables
from noetl_storage.arrow_values import UnshownValue
from noetl_worker.domain.failures import ToolFailure, failure

FORMATS = ("parquet", "csv", "json", "ndjson")
BATCH_ROWS = 10_000


def rows_of(batch: pa.RecordBatch, kinds: list[str]) -> list[dict[str, Any]]:
    """Read a batch as JSON values; `kinds` are the database's names of the columns' types.

    Raises `ToolFailure` for a date before the year 1 or after 9999.
    """
    try:
        return arrow_values.rows_of(batch, kinds)
    except UnshownValue as problem:
        raise ToolFailure(failure("schema", str(problem))) from problem


def read_file(path: Path, format_: str) -> pa.Table:
    """Read a file as a table; raises `ToolFailure`."""
    if format_ not in FORMATS:
        text = f"format {format_!r:.40} is not known: use {', '.join(FORMATS)}"
        raise ToolFailure(failure("config", text))
    try:
        match format_:
            case "parquet":
                return pyarrow.parquet.ParquetFile(path).read()
            case "csv":
                return pyarrow.csv.read_csv(path)
            case "ndjson":
                return pyarrow.json.read_json(path)
        return row_tables.table_of(*_rows_in(path))
    except FileNotFoundError as problem:
        raise ToolFailure(failure("not_found", f"there is no file {path.name!r}")) from problem
    except (pa.ArrowException, OSError, ValueError) as problem:
        text = f"the file {path.name!r} does not read as {format_}: {problem}"
        raise ToolFailure(failure("parse", text)) from problem


def _rows_in(path: Path) -> tuple[list[dict[str, Any]], list[str] | None]:
    """Read a JSON file: a list of mappings, a table, or one mapping a line."""
    data = path.read_bytes()
    if data.lstrip()[:1] == b"[" or b"\n" not in data.strip():
        found = row_tables.records(codec.decode(data))
        if found is not None:
            return found
    return [dict(codec.decode(line)) for line in data.splitlines() if line.strip()], None


def format_of(path: Path, wanted: Any) -> str:
    """Return the format that is named, else the one that the file's name tells."""
    suffix = path.suffix.removeprefix(".").lower()
    return str(wanted or {"jsonl": "ndjson"}.get(suffix, suffix) or "json").lower()


def batches(table: pa.Table, size: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Cut a table into batches of at most so many rows."""
    yield from table.to_batches(max_chunksize=size)
