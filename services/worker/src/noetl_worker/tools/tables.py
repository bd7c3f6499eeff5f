"""Rows and tables: JSON values into Arrow, Arrow into JSON values, files into Arrow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from noetl_storage import arrow_values, table_schema
from noetl_storage.arrow_values import UnshownValue
from noetl_storage.encoding import PayloadTooLarge, PayloadUnreadable
from noetl_storage.table_schema import Kinds, SchemaMismatch
from noetl_storage.unpacking.reading import ParquetTable
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.tools import csv_table, json_table

FORMATS = ("parquet", "csv", "json", "ndjson")
BATCH_ROWS = 10_000
BYTES_MAX = 256 * 1024 * 1024


def rows_of(batch: pa.RecordBatch, kinds: list[str]) -> list[dict[str, Any]]:
    """Read a batch as JSON values; `kinds` are the database's names of the columns' types.

    Raises `ToolFailure` for a date before the year 1 or after 9999.
    """
    try:
        return arrow_values.rows_of(batch, kinds)
    except UnshownValue as problem:
        raise ToolFailure(failure("schema", str(problem))) from problem


def read_file(
    path: Path, format_: str, *, kinds: Kinds | None = None, bytes_max: int = BYTES_MAX
) -> pa.Table:
    """Read a file as a table that takes at most so much; raises `ToolFailure`.

    `kinds` are the types of columns of CSV and JSON, which have none of their own.
    """
    if format_ not in FORMATS:
        text = f"format {format_!r:.40} is not known: use {', '.join(FORMATS)}"
        raise ToolFailure(failure("config", text))
    try:
        match format_:
            case "parquet":
                if kinds:
                    text = f"{path.name}: a Parquet file has types of its own: leave 'types' out"
                    raise ToolFailure(failure("validation", text))
                with pa.OSFile(str(path)) as file:
                    return ParquetTable(file, bytes_max=bytes_max).read()
            case "csv":
                size = path.stat().st_size
                return csv_table.read_csv(
                    lambda: path.open("rb"), size, kinds=kinds, bytes_max=bytes_max
                )
            case _:
                is_lines = format_ == "ndjson"
                return json_table.read_json(path, kinds, is_lines=is_lines, bytes_max=bytes_max)
    except FileNotFoundError as problem:
        raise ToolFailure(failure("not_found", f"there is no file {path.name!r}")) from problem
    except PayloadTooLarge as problem:
        raise ToolFailure(failure("payload_too_large", f"{path.name}: {problem}")) from problem
    except SchemaMismatch as problem:
        raise ToolFailure(failure("schema", f"{path.name}: {problem}")) from problem
    except (pa.ArrowException, OSError, ValueError, PayloadUnreadable) as problem:
        text = f"the file {path.name!r} does not read as {format_}: {problem}"
        raise ToolFailure(failure("parse", text)) from problem


def kinds_of_file(types: Any) -> Kinds | None:
    """Read the types that an input names for columns of its file; raises `UnknownType`."""
    if types is None:
        return None
    if not isinstance(types, dict):
        raise ToolFailure(failure("validation", "'types' of a file must map columns to types"))
    names = [str(name) for name in types]
    return table_schema.kinds_of(names, list(types.values()))


def format_of(path: Path, wanted: Any) -> str:
    """Return the format that is named, else the one that the file's name tells."""
    suffix = path.suffix.removeprefix(".").lower()
    return str(wanted or {"jsonl": "ndjson"}.get(suffix, suffix) or "json").lower()


def batches(table: pa.Table, size: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Cut a table into batches of at most so many rows."""
    yield from table.to_batches(max_chunksize=size)
