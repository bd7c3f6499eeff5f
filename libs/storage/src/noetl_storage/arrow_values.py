"""Arrow columns as JSON values."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa

from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_contracts.plain import plain

Convert = Callable[[Any], Any]


class UnshownValue(Permanent):
    """A date or time has no JSON form."""


def rows_of(batch: pa.RecordBatch, kinds: list[str]) -> list[dict[str, Any]]:
    """Read a batch as JSON values; `kinds` are the database's names of the columns' types.

    Raises `UnshownValue` for a date before the year 1 or after 9999.
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
            raise UnshownValue(text) from problem
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
