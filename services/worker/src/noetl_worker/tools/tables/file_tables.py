"""Files as tables: JSON piece by piece, CSV and Parquet in batches."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.json

from noetl_contracts import codec
from noetl_storage.arrow import arrow_values, row_tables, table_schema
from noetl_storage.arrow.arrow_values import ValueWithoutJson
from noetl_storage.arrow.encoding import PayloadTooLarge, PayloadUnreadable
from noetl_storage.arrow.table_schema import Kinds, SchemaMismatch
from noetl_storage.size_limits.bounded_tables import ParquetTable
from noetl_storage.size_limits.refusals import build_too_large_error
from noetl_worker.domain.failures import ToolFailure, build_error, check_column_names
from noetl_worker.tools.tables import csv_table

# One value takes about six times its text while it is decoded.
WHOLE_BYTES_MAX = 64 * 1024 * 1024
# Text that takes so many times more than the table it makes is none that a table is made of.
_TEXT_RATIO = 4
_PIECE_ROWS = 10_000
_LONG_NUMBER = re.compile(rb"[\d.]{17}|[\d.][eE]\+?\d{3}")
FORMATS = ("parquet", "csv", "json", "ndjson")
BATCH_ROWS = 10_000
BYTES_MAX = 256 * 1024 * 1024


def read_json(path: Path, kinds: Kinds | None, *, is_lines: bool, bytes_max: int) -> pa.Table:
    """Read a file as a table; raises `PayloadTooLarge` for what takes too much memory."""
    size = path.stat().st_size
    if size > _TEXT_RATIO * bytes_max:
        raise build_too_large_error("a file of JSON", size, _TEXT_RATIO * bytes_max)
    if is_lines or _holds_lines(path):
        return _read_lines(path, kinds or {}, bytes_max=bytes_max)
    _check_whole("a file of JSON in one value, which no ndjson or Parquet file would be,", size)
    row_table = row_tables.read_row_table(codec.decode_exactly(path.read_bytes()))
    if row_table is None:
        return _read_lines(path, kinds or {}, bytes_max=bytes_max)
    return row_tables.build_table(
        row_table.rows, row_table.columns, {**row_table.kinds, **(kinds or {})}
    )


def _holds_lines(path: Path) -> bool:
    """Tell a mapping a line from a list, and from one mapping."""
    with path.open("rb") as file:
        lines = (line for line in file if line.strip())
        first = next(lines, b"")
        return not first.lstrip().startswith(b"[") and next(lines, None) is not None


def _read_lines(path: Path, kinds: Kinds, *, bytes_max: int) -> pa.Table:
    """Read a mapping a line: by Arrow, unless that would round a number."""
    size = path.stat().st_size
    with path.open("rb") as lines:
        has_long_numbers = any(map(_LONG_NUMBER.search, lines))
    if not has_long_numbers and not kinds:
        return pyarrow.json.read_json(path)
    pieces = list(_iterate_pieces(path, kinds, bytes_max=bytes_max))
    if not pieces:
        return row_tables.build_table([], None, kinds)
    try:
        # A column that a piece lacks, or that is empty in it, is that of the others.
        return pa.concat_tables(pieces, promote_options="default").combine_chunks()
    except (pa.ArrowTypeError, pa.ArrowInvalid) as problem:
        pieces.clear()
        subject = f"a file of JSON whose columns have no type throughout ({problem}): name 'types',"
        _check_whole(subject, size)
    with path.open("rb") as lines:
        rows = [row for piece in _iterate_row_pieces(lines) for row in piece]
    return row_tables.build_table(rows, None, kinds)


def _iterate_pieces(path: Path, kinds: Kinds, *, bytes_max: int) -> Iterator[pa.Table]:
    size = 0
    with path.open("rb") as lines:
        for rows in _iterate_row_pieces(lines):
            piece = row_tables.build_table(rows, None, kinds)
            size += piece.nbytes
            if size > bytes_max:
                raise build_too_large_error("a table", size, bytes_max)
            yield piece


def _iterate_row_pieces(lines: IO[bytes]) -> Iterator[list[dict[str, Any]]]:
    rows = (dict(codec.decode_exactly(line)) for line in lines if line.strip())
    while piece := list(islice(rows, _PIECE_ROWS)):
        yield piece


def _check_whole(subject: str, size: int) -> None:
    if size > WHOLE_BYTES_MAX:
        raise build_too_large_error(subject, size, WHOLE_BYTES_MAX)


def build_rows(batch: pa.RecordBatch, kinds: list[str]) -> list[dict[str, Any]]:
    """Read a batch as JSON values; `kinds` are the database's names of the columns' types.

    Raises `ToolFailure` for a date before the year 1 or after 9999.
    """
    try:
        return arrow_values.batch_to_rows(batch, kinds)
    except ValueWithoutJson as problem:
        raise ToolFailure(build_error("schema", str(problem))) from problem


def read_table_file(
    path: Path, format_: str, *, kinds: Kinds | None = None, bytes_max: int = BYTES_MAX
) -> pa.Table:
    """Read a file as a table that takes at most so much; raises `ToolFailure`.

    `kinds` are the types of columns of CSV and JSON, which have none of their own.
    """
    if format_ not in FORMATS:
        text = f"format {format_!r:.40} is not known: use {', '.join(FORMATS)}"
        raise ToolFailure(build_error("config", text))
    table = _read_format(path, format_, kinds=kinds, bytes_max=bytes_max)
    check_column_names(table.column_names, source="files", subject=f"the file {path.name!r}")
    return table


def _read_format(path: Path, format_: str, *, kinds: Kinds | None, bytes_max: int) -> pa.Table:
    try:
        match format_:
            case "parquet":
                if kinds:
                    text = f"{path.name}: a Parquet file has types of its own: leave 'types' out"
                    raise ToolFailure(build_error("validation", text))
                with pa.OSFile(str(path)) as file:
                    return ParquetTable(file, bytes_max=bytes_max).read_table()
            case "csv":
                size = path.stat().st_size
                return csv_table.read_csv(
                    lambda: path.open("rb"), size, kinds=kinds, bytes_max=bytes_max
                )
            case _:
                is_lines = format_ == "ndjson"
                return read_json(path, kinds, is_lines=is_lines, bytes_max=bytes_max)
    except FileNotFoundError as problem:
        raise ToolFailure(build_error("not_found", f"there is no file {path.name!r}")) from problem
    except PayloadTooLarge as problem:
        raise ToolFailure(build_error("payload_too_large", f"{path.name}: {problem}")) from problem
    except SchemaMismatch as problem:
        raise ToolFailure(build_error("schema", f"{path.name}: {problem}")) from problem
    except (pa.ArrowException, OSError, ValueError, PayloadUnreadable) as problem:
        text = f"the file {path.name!r} does not read as {format_}: {problem}"
        raise ToolFailure(build_error("parse", text)) from problem


def parse_kinds(types: Any) -> Kinds | None:
    """Read the types that an input names for columns of its file; raises `UnknownType`."""
    if types is None:
        return None
    if not isinstance(types, dict):
        raise ToolFailure(build_error("validation", "'types' of a file must map columns to types"))
    names = [str(name) for name in types]
    return table_schema.parse_column_kinds(names, list(types.values()))


def choose_format(path: Path, format_name: Any) -> str:
    """Return the format that is named, else the one that the file's name tells."""
    suffix = path.suffix.removeprefix(".").lower()
    return str(format_name or {"jsonl": "ndjson"}.get(suffix, suffix) or "json").lower()


def iterate_batches(table: pa.Table, size: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Cut a table into batches of at most so many rows."""
    yield from table.to_batches(max_chunksize=size)
