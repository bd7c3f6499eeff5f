"""Rows and tables: JSON values into Arrow, Arrow into JSON values, files into Arrow."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json

from noetl_contracts import codec
from noetl_storage import arrow_values, row_tables, table_schema
from noetl_storage.arrow_values import UnshownValue
from noetl_storage.encoding import PayloadTooLarge, PayloadUnreadable
from noetl_storage.row_tables import RowTable
from noetl_storage.table_schema import Kinds, SchemaMismatch
from noetl_storage.unpacking.reading import ParquetTable
from noetl_storage.unpacking.refusals import too_large
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.tools import csv_table

FORMATS = ("parquet", "csv", "json", "ndjson")
BATCH_ROWS = 10_000
BYTES_MAX = 256 * 1024 * 1024
# Values that are text take more than as a table.
_JSON_RATIO = 4
# Numbers of so many digits, or with such an exponent, may be more than floats and integers hold.
_LONG_NUMBER = re.compile(rb"[\d.]{17}|[\d.][eE]\+?\d{3}")


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
                return _read_json(path, format_, kinds, bytes_max=bytes_max)
    except FileNotFoundError as problem:
        raise ToolFailure(failure("not_found", f"there is no file {path.name!r}")) from problem
    except PayloadTooLarge as problem:
        raise ToolFailure(failure("payload_too_large", f"{path.name}: {problem}")) from problem
    except SchemaMismatch as problem:
        raise ToolFailure(failure("schema", f"{path.name}: {problem}")) from problem
    except (pa.ArrowException, OSError, ValueError, PayloadUnreadable) as problem:
        text = f"the file {path.name!r} does not read as {format_}: {problem}"
        raise ToolFailure(failure("parse", text)) from problem


def _read_json(path: Path, format_: str, kinds: Kinds | None, *, bytes_max: int) -> pa.Table:
    size = path.stat().st_size
    if size > _JSON_RATIO * bytes_max:
        raise too_large("a file of JSON", size, _JSON_RATIO * bytes_max)
    found = None if format_ == "ndjson" else _rows_in(path)
    if found is None:
        return _read_lines(path, kinds or {})
    if kinds is None:
        return row_tables.table_of(*found)
    return row_tables.table_of(found.rows, found.columns, {**found.kinds, **kinds})


def _rows_in(path: Path) -> RowTable | None:
    """Read a JSON file: a list of mappings or a table; None for one mapping a line."""
    data = path.read_bytes()
    if data.lstrip()[:1] == b"[" or b"\n" not in data.strip():
        return row_tables.records(codec.decode_exactly(data))
    return None


def _read_lines(path: Path, kinds: Kinds) -> pa.Table:
    """Read a mapping a line: by Arrow, unless that would round a number."""
    with path.open("rb") as lines:
        has_long_numbers = any(map(_LONG_NUMBER.search, lines))
    if not has_long_numbers and not kinds:
        return pyarrow.json.read_json(path)
    with path.open("rb") as lines:
        rows = [dict(codec.decode_exactly(line)) for line in lines if line.strip()]
    return row_tables.table_of(rows, None, kinds)


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
