"""Rows and tables: JSON values into Arrow, Arrow into JSON values, files into Arrow."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from noetl_contracts import codec
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.plain import plain

FORMATS = ("parquet", "csv", "json", "ndjson")
BATCH_ROWS = 10_000

Convert = Callable[[Any], Any]


def records(value: Any) -> tuple[list[dict[str, Any]], list[str] | None] | None:
    """Read rows from a list of mappings or a tabular mapping; None when it is neither.

    The second part names the columns where the value does.
    """
    columns: list[str] | None = None
    if isinstance(value, dict):
        inner = value.get("data")
        if "rows" not in value and isinstance(inner, dict) and "rows" in inner:
            return records(inner)
        named, value = value.get("columns"), value.get("rows")
        columns = None if named is None else [str(_name(name)) for name in named]
    if not isinstance(value, list):
        return None
    if all(isinstance(row, dict) for row in value):
        return value, columns
    if columns is not None and all(isinstance(row, list) for row in value):
        return [dict(zip(columns, row, strict=False)) for row in value], columns
    return None


def _name(column: Any) -> Any:
    return column.get("name") if isinstance(column, dict) else column


def table_of(rows: list[dict[str, Any]], columns: list[str] | None = None) -> pa.Table:
    """Build a table; a column of mixed types holds text, with what is not text as JSON."""
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {int, float} or len(kinds) == 1:
        try:
            found = pa.array(values)
        except (pa.ArrowException, OverflowError):
            return _texts(values)
        # A mapping without keys has no type that a query could name.
        return _texts(values) if pa.types.is_struct(found.type) and not len(found.type) else found
    return _texts(values)


def _texts(values: list[Any]) -> pa.Array:
    texts = (v if v is None or isinstance(v, str) else codec.encode(v).decode() for v in values)
    return pa.array(list(texts), pa.string())


def rows_of(batch: pa.RecordBatch, kinds: list[str]) -> list[dict[str, Any]]:
    """Read a batch as JSON values; `kinds` are the database's names of the columns' types.

    Raises `ToolFailure` for a date before the year 1 or after 9999.
    """
    columns: list[list[Any]] = []
    for name, column, kind in zip(batch.schema.names, batch.columns, kinds, strict=True):
        try:
            columns.append(_values(column, kind))
        except (OverflowError, ValueError) as problem:
            text = (
                f"column '{name}' holds a date or time that has no JSON form ({problem}): "
                "cast it to text in the query"
            )
            raise ToolFailure(failure("schema", text)) from problem
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array, kind: str) -> list[Any]:
    convert = _BY_NAME.get(kind) or _reader(column.type)
    found: list[Any] = _without_nanoseconds(column).to_pylist()
    if convert is None:
        return found
    return [None if value is None else convert(value) for value in found]


def _without_nanoseconds(column: pa.Array) -> pa.Array:
    """Python's date-times end at microseconds."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return column


def _reader(kind: pa.DataType) -> Convert | None:
    if pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return None
    if pa.types.is_map(kind):
        item = _reader(kind.item_type) or _same
        return lambda pairs: {str(plain(key)): _absent(item, value) for key, value in pairs}
    if pa.types.is_struct(kind):
        readers = {field.name: _reader(field.type) or _same for field in kind}
        return lambda row: {name: _absent(readers[name], value) for name, value in row.items()}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = _reader(kind.value_type) or _same
        return lambda values: [_absent(item, value) for value in values]
    return _seconds if pa.types.is_interval(kind) else plain


def _same(value: Any) -> Any:
    return value


def _absent(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _json(text: str) -> Any:
    return codec.decode(text.encode())


def _bits(data: bytes) -> str:
    """Write a bit string: its first byte counts the padding of the second."""
    return "".join(f"{byte:08b}" for byte in data[1:])[data[0] :]


def _seconds(span: Any) -> float:
    """Measure an interval as PostgreSQL's client does: a year of 365 days, a month of 30."""
    years, months = divmod(span.months, 12)
    days = timedelta(days=365 * years + 30 * months + span.days)
    return days.total_seconds() + float(span.nanoseconds) / 1e9


def _large(text: str) -> Any:
    return plain(int(text))


_BY_NAME: dict[str, Convert] = {
    "JSON": _json,
    "BIT": _bits,
    **dict.fromkeys(("UHUGEINT", "BIGNUM"), _large),
}


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
        return table_of(*_rows_in(path))
    except FileNotFoundError as problem:
        raise ToolFailure(failure("not_found", f"there is no file {path.name!r}")) from problem
    except (pa.ArrowException, OSError, ValueError) as problem:
        text = f"the file {path.name!r} does not read as {format_}: {problem}"
        raise ToolFailure(failure("parse", text)) from problem


def _rows_in(path: Path) -> tuple[list[dict[str, Any]], list[str] | None]:
    """Read a JSON file: a list of mappings, a table, or one mapping a line."""
    data = path.read_bytes()
    if data.lstrip()[:1] == b"[" or b"\n" not in data.strip():
        found = records(codec.decode(data))
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
