"""Rows and tables: JSON values into Arrow, Arrow into JSON values, files into Arrow."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from noetl_contracts import codec
from noetl_storage import arrow_values, row_tables
from noetl_storage.arrow_values import UnshownValue
from noetl_storage.encoding import PayloadTooLarge, PayloadUnreadable
from noetl_storage.unpacking.reading import ParquetTable
from noetl_storage.unpacking.refusals import too_large
from noetl_worker.domain.failures import ToolFailure, failure

FORMATS = ("parquet", "csv", "json", "ndjson")
BATCH_ROWS = 10_000
BYTES_MAX = 256 * 1024 * 1024
# No text of a cell is shorter than its comma, and no number takes more than this.
_CSV_CELL_BYTES = 8
# Values that are text take more than as a table.
_JSON_RATIO = 4


def rows_of(batch: pa.RecordBatch, kinds: list[str]) -> list[dict[str, Any]]:
    """Read a batch as JSON values; `kinds` are the database's names of the columns' types.

    Raises `ToolFailure` for a date before the year 1 or after 9999.
    """
    try:
        return arrow_values.rows_of(batch, kinds)
    except UnshownValue as problem:
        raise ToolFailure(failure("schema", str(problem))) from problem


def read_file(path: Path, format_: str, *, bytes_max: int = BYTES_MAX) -> pa.Table:
    """Read a file as a table that takes at most so much; raises `ToolFailure`."""
    if format_ not in FORMATS:
        text = f"format {format_!r:.40} is not known: use {', '.join(FORMATS)}"
        raise ToolFailure(failure("config", text))
    try:
        match format_:
            case "parquet":
                with pa.OSFile(str(path)) as file:
                    return ParquetTable(file, bytes_max=bytes_max).read()
            case "csv":
                size = path.stat().st_size
                return read_csv(lambda: path.open("rb"), size, bytes_max=bytes_max)
            case _:
                return _read_json(path, format_, bytes_max=bytes_max)
    except FileNotFoundError as problem:
        raise ToolFailure(failure("not_found", f"there is no file {path.name!r}")) from problem
    except PayloadTooLarge as problem:
        raise ToolFailure(failure("payload_too_large", f"{path.name}: {problem}")) from problem
    except (pa.ArrowException, OSError, ValueError, PayloadUnreadable) as problem:
        text = f"the file {path.name!r} does not read as {format_}: {problem}"
        raise ToolFailure(failure("parse", text)) from problem


def read_csv(open_: Callable[[], IO[bytes]], size: int, *, bytes_max: int = BYTES_MAX) -> pa.Table:
    """Read so many bytes of CSV, and stop at the bound; raises `PayloadTooLarge`.

    Read block by block, a column has the type of its first block. One that turns out to be of
    another is read as a whole, as long as not even that could take very much.
    """
    if size * _CSV_CELL_BYTES <= bytes_max:
        with open_() as file:
            return pyarrow.csv.read_csv(file)
    try:
        with open_() as file, pyarrow.csv.open_csv(file) as reader:
            return pa.Table.from_batches(_within(reader, bytes_max), schema=reader.schema)
    except pa.ArrowInvalid as problem:
        if size > bytes_max:
            what = f"a file of CSV that is no table block by block ({problem})"
            raise too_large(what, size, bytes_max) from problem
    with open_() as file:
        return pyarrow.csv.read_csv(file)


def _within(batches_: Iterator[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
    size = 0
    for batch in batches_:
        size += batch.nbytes
        if size > bytes_max:
            raise too_large("a table", size, bytes_max)
        yield batch


def _read_json(path: Path, format_: str, *, bytes_max: int) -> pa.Table:
    size = path.stat().st_size
    if size > _JSON_RATIO * bytes_max:
        raise too_large("a file of JSON", size, _JSON_RATIO * bytes_max)
    if format_ == "ndjson":
        return pyarrow.json.read_json(path)
    return row_tables.table_of(*_rows_in(path))


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
