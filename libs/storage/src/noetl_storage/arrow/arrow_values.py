"""Arrow columns as JSON values: exactly, as text where JSON has no such value."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute

from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_contracts.json_values import decimal_to_json, to_json_value
from noetl_storage.arrow import calendar_text
from noetl_storage.arrow.calendar_text import UNIT_PER_S

Convert = Callable[[Any], Any]


class ValueWithoutJson(Permanent):
    """A value has no JSON form."""


def batch_to_rows(batch: pa.RecordBatch, kinds: list[str]) -> list[dict[str, Any]]:
    """Read a batch as JSON values; `kinds` are the database's names of the columns' types.

    Raises `ValueWithoutJson` that names the column.
    """
    columns: list[list[Any]] = []
    for name, column, kind in zip(batch.schema.names, batch.columns, kinds, strict=True):
        try:
            columns.append(_column_to_values_by_kind(column, kind))
        except (ArithmeticError, ValueError, pa.ArrowException) as problem:
            text = (
                f"column '{name}' holds a value that has no JSON form ({problem}): "
                "cast it to text in the query"
            )
            raise ValueWithoutJson(text) from problem
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def column_to_values(column: pa.Array) -> list[Any]:  # noqa: C901 - one arm per family of types
    """Read a column as JSON values; raises `ValueError` and the like for what has no JSON form."""
    kind, types = column.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _convert_extension(column)
    if types.is_floating(kind):
        return _convert_floats(column)
    if types.is_timestamp(kind):
        return _convert_moments(column)
    if types.is_date32(kind):
        return _convert_dates(column)
    if types.is_date64(kind):
        return _convert_dates(column.cast(pa.date32()))
    if types.is_time(kind):
        show: Convert = lambda value: calendar_text.format_time(value, kind.unit)  # noqa: E731 - used once
        return _convert_values(_read_as_integers(column), show)
    if types.is_duration(kind):
        return _convert_values(
            _read_as_integers(column), lambda value: _format_duration(value, kind.unit)
        )
    if types.is_interval(kind):
        return _convert_values(column.to_pylist(), _format_interval_value)
    if types.is_decimal(kind):
        return _convert_values(column.to_pylist(), decimal_to_json)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return column_to_values(_decode_column(column))
    if types.is_nested(kind):
        return _convert_nested(column)
    values: list[Any] = column.to_pylist()
    is_json = types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind)
    if is_json or types.is_string(kind) or types.is_large_string(kind):
        return values
    return _convert_values(values, to_json_value)


def _column_to_values_by_kind(column: pa.Array, kind: str) -> list[Any]:
    read_value = _READ_BY_NAME.get(kind)
    return (
        column_to_values(column)
        if read_value is None
        else _convert_values(column.to_pylist(), read_value)
    )


def _convert_values(values: list[Any], show: Convert) -> list[Any]:
    return [None if value is None else show(value) for value in values]


def _convert_extension(column: pa.Array) -> list[Any]:
    name = column.type.extension_name
    if name == "arrow.uuid":
        return _convert_values(column.to_pylist(), str)
    if name == "arrow.json":
        return _convert_values(column.storage.to_pylist(), codec.decode_json)
    return column_to_values(column.storage)


def _decode_column(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    return pyarrow.compute.run_end_decode(column)


def _convert_floats(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_float16(column.type):
        return _convert_values(values, to_json_value)
    finite = pyarrow.compute.all(pyarrow.compute.is_finite(column)).as_py()
    return values if finite is not False else _convert_values(values, to_json_value)


def _read_as_integers(column: pa.Array) -> list[Any]:
    """Read times as the numbers that they are: not all have a value of Python's."""
    width = pa.int32() if column.type.bit_width == 32 else pa.int64()  # noqa: PLR2004 - bits
    numbers: list[Any] = column.view(width).to_pylist()
    return numbers


def _convert_dates(column: pa.Array) -> list[Any]:
    ends, day_s = _find_min_max(column.view(pa.int32())), calendar_text.DAY_S
    if ends is None or calendar_text.is_in_python_range(ends[0] * day_s, ends[1] * day_s, "s"):
        return _convert_values(column.to_pylist(), _format_iso)
    return _convert_values(_read_as_integers(column), calendar_text.format_date)


def _convert_moments(column: pa.Array) -> list[Any]:
    unit, has_zone = column.type.unit, column.type.tz is not None
    ends = _find_min_max(column.view(pa.int64()))
    if ends is None:
        return [None] * len(column)
    if calendar_text.is_in_python_range(*ends, unit):
        short = _cast_to_microseconds(column)
        if short is not None:
            return _convert_values(short.to_pylist(), _format_iso)
    show: Convert = lambda value: calendar_text.format_moment(value, unit, has_zone=has_zone)  # noqa: E731 - used once
    return _convert_values(_read_as_integers(column), show)


def _cast_to_microseconds(column: pa.Array) -> pa.Array | None:
    """Return moments as Python holds them, None where that would cut nanoseconds off."""
    if column.type.unit != "ns":
        return column
    try:
        return column.cast(pa.timestamp("us", column.type.tz))
    except pa.ArrowInvalid:
        return None


def _find_min_max(numbers: pa.Array) -> tuple[int, int] | None:
    """Return the least and the greatest of what is there."""
    ends = pyarrow.compute.min_max(numbers).as_py()
    return None if ends["min"] is None else (ends["min"], ends["max"])


def _format_iso(value: Any) -> str:
    return str(value.isoformat())


def _format_duration(value: int, unit: str) -> float | str:
    """Write a length of time as seconds, or as ISO 8601 does where a float is not exact."""
    exact = Decimal(value) / UNIT_PER_S[unit]
    seconds = float(exact)
    if Decimal(repr(seconds)) == exact:
        return seconds
    return calendar_text.format_interval(0, 0, value * (UNIT_PER_S["ns"] // UNIT_PER_S[unit]))


def _format_interval_value(span: Any) -> float | str:
    months, days, nanoseconds = span
    if months or days:
        return calendar_text.format_interval(months, days, nanoseconds)
    return _format_duration(nanoseconds, "ns")


def _convert_nested(column: pa.Array) -> list[Any]:
    kind, types = column.type, pa.types
    if types.is_map(kind):
        keys, items = column_to_values(column.keys), column_to_values(column.items)
        pairs = [
            {_format_map_key(keys[i]): items[i] for i in range(a, b)}
            for a, b in _list_offsets(column)
        ]
        return _mask_nulls(column, pairs)
    if types.is_struct(kind):
        names = [field.name for field in kind]
        parts = [column_to_values(column.field(place)) for place in range(len(names))]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]
        return _mask_nulls(column, rows or [{}] * len(column))
    if types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        items = column_to_values(column.values)
        return _mask_nulls(column, [items[start:end] for start, end in _list_offsets(column)])
    # Of a union each value has a type of its own.
    return _convert_values(column.to_pylist(), to_json_value)


def _list_offsets(column: pa.Array) -> list[tuple[int, int]]:
    offsets = column.offsets.to_pylist()
    return list(pairwise(offsets))


def _mask_nulls(column: pa.Array, values: list[Any]) -> list[Any]:
    if not column.null_count:
        return values
    valid_flags = column.is_valid().to_pylist()
    return [
        value if is_valid else None for value, is_valid in zip(values, valid_flags, strict=True)
    ]


def _format_map_key(value: Any) -> str:
    return value if isinstance(value, str) else codec.encode_text(value)


def _parse_json_text(text: str) -> Any:
    return codec.decode_json(text.encode())


def _format_bits(data: bytes) -> str:
    """Write a bit string: its first byte counts the padding of the second."""
    return "".join(f"{byte:08b}" for byte in data[1:])[data[0] :]


def _parse_large_integer(text: str) -> Any:
    return to_json_value(int(text))


_READ_BY_NAME: Mapping[str, Convert] = {
    "JSON": _parse_json_text,
    "BIT": _format_bits,
    **dict.fromkeys(("UHUGEINT", "BIGNUM"), _parse_large_integer),
}
