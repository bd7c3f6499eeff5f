"""Builds Arrow columns of a type from JSON values; refuses values that do not fit exactly."""

import math
from base64 import b64decode
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any
from uuid import UUID

import pyarrow as pa

from noetl_contracts import codec
from noetl_storage.arrow import calendar_text
from noetl_storage.arrow.calendar_text import UNIT_PER_S
from noetl_storage.arrow.table_schema import (
    WIDE_DECIMAL_DIGITS_MAX,
    SchemaMismatch,
    format_arrow_type,
)

Read = Callable[[Any], Any]

_NUMBERS = (int, float)
_FLOATS = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "-Infinity": -math.inf,
    "inf": math.inf,
    "-inf": -math.inf,
}
_SHOWN_CHARACTERS_MAX = 80
_BROKEN = (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError)
_EXACT = Context(prec=WIDE_DECIMAL_DIGITS_MAX, traps=[InvalidOperation, Inexact])


class UnfitCell(SchemaMismatch):
    """A value does not fit the type of its column."""


def build_column(name: str, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build a column; raises `UnfitCell` that names the column and the first row that is wrong."""
    try:
        return _build_column_values(values, kind)
    except _BROKEN as problem:
        raise _build_unfit_error(name, values, kind, problem) from problem


def _build_unfit_error(
    name: str, values: Sequence[Any], kind: pa.DataType, problem: Exception
) -> UnfitCell:
    place, reason = "", problem
    for row, value in enumerate(values):
        try:
            _build_column_values([value], kind)
        except _BROKEN as unfit_error:
            cell_text = value if isinstance(value, str) else codec.encode_text(value)
            place = f", row {row}: {cell_text[:_SHOWN_CHARACTERS_MAX]!r}"
            reason = unfit_error
            break
    text = (
        f"column '{name}'{place} does not fit the type {format_arrow_type(kind)} ({reason}): "
        "cast the column in the query that makes it, or give another type"
    )
    return UnfitCell(text)


def _build_column_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:  # noqa: C901 - one arm per family
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _build_extension_array(values, kind)
    if types.is_boolean(kind) or types.is_null(kind):
        return pa.array(values, kind)
    if types.is_integer(kind):
        return _build_integers(values, kind)
    if types.is_floating(kind):
        return _build_floats(values, kind)
    if types.is_decimal(kind):
        return pa.array(_map_values(values, _parse_decimal), kind)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _build_texts(values, kind)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.array(_map_values(values, _parse_base64), kind)
    if types.is_timestamp(kind):
        return _build_moments(values, kind)
    if types.is_date32(kind):
        return _build_dates(values, kind)
    if types.is_time(kind):
        width = pa.int32() if types.is_time32(kind) else pa.int64()
        numbers = _map_values(
            values, lambda text: calendar_text.parse_time(_check_text(text), kind.unit)
        )
        return pa.array(numbers, width).view(kind)
    if types.is_duration(kind):
        numbers = _map_values(values, lambda span: _parse_duration(span, kind.unit))
        return pa.array(numbers, pa.int64()).view(kind)
    if types.is_interval(kind):
        return pa.array(_map_values(values, _parse_interval_value), kind)
    return _build_nested(values, kind)


def _map_values(values: Sequence[Any], read_value: Read) -> list[Any]:
    return [None if value is None else read_value(value) for value in values]


def _build_extension_array(values: Sequence[Any], kind: pa.BaseExtensionType) -> pa.Array:
    if kind.extension_name == "arrow.uuid":
        read_value: Read = lambda text: UUID(_check_text(text)).bytes  # noqa: E731 - one of two ways
    elif kind.extension_name == "arrow.json":
        read_value = codec.encode_text
    else:
        return pa.ExtensionArray.from_storage(kind, _build_column_values(values, kind.storage_type))
    return pa.ExtensionArray.from_storage(
        kind, pa.array(_map_values(values, read_value), kind.storage_type)
    )


def _build_integers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    # Arrow would cut a fraction off, and say nothing.
    if all(type(value) is int or value is None for value in values):
        return pa.array(values, kind)
    return pa.array(_map_values(values, _parse_integer), kind)


def _parse_integer(value: Any) -> int:
    if isinstance(value, str):
        return int(value)
    if isinstance(value, bool) or int(value) != value:
        raise ValueError("it is no whole number")
    return int(value)


def _build_floats(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if any(type(value) is not float and value is not None for value in values):
        values = _map_values(values, _parse_float)
    array = pa.array(values, kind)
    if pa.types.is_float64(kind):
        return array
    # What is too large for a narrow float becomes infinite, and what it cannot hold is rounded.
    for value, array_value in zip(values, array.to_pylist(), strict=True):
        if value is not None and math.isinf(array_value) and not math.isinf(value):
            raise ValueError("it is too large")
    return array


def _parse_float(value: Any) -> float:
    if isinstance(value, str):
        if value in _FLOATS:
            return _FLOATS[value]
        number = float(value)
        if not math.isfinite(number) or Decimal(repr(number)) != Decimal(value):
            raise ValueError("a float does not hold it exactly")
        return number
    if isinstance(value, bool) or not isinstance(value, _NUMBERS):
        raise ValueError("it is no number")  # noqa: TRY004 - a value, not an argument, is wrong
    if float(value) != value and not math.isnan(value):
        raise ValueError("a float does not hold it exactly")
    return float(value)


def _parse_decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("it is no number")  # noqa: TRY004 - a value, not an argument, is wrong
    decimal = Decimal(repr(value) if isinstance(value, float) else value)
    if not decimal.is_finite():
        raise ValueError("a decimal is finite")
    return _EXACT.plus(decimal)


def _build_texts(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if all(type(value) is str or value is None for value in values):
        return pa.array(values, kind)
    return pa.array(_map_values(values, _to_text), kind)


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else codec.encode_text(value)


def _check_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it is no text")  # noqa: TRY004 - a value, not an argument, is wrong
    return value


def _parse_base64(value: Any) -> bytes:
    return b64decode(_check_text(value), validate=True)


def _build_moments(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    has_zone = kind.tz is not None
    try:
        return pa.array(values, pa.string()).cast(kind)
    except pa.ArrowException:
        # Arrow reads neither all years nor all ways to write a zone.
        read_value: Read = lambda text: calendar_text.parse_moment(  # noqa: E731 - used once
            _check_text(text), kind.unit, has_zone=has_zone
        )
        return pa.array(_map_values(values, read_value), pa.int64()).view(kind)


def _build_dates(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, pa.string()).cast(kind)
    except pa.ArrowException:
        days = _map_values(values, lambda text: calendar_text.parse_date(_check_text(text)))
        return pa.array(days, pa.int32()).view(kind)


def _parse_duration(value: Any, unit: str) -> int:
    if isinstance(value, str):
        months, days, nanoseconds = calendar_text.parse_interval(value)
        if months:
            raise ValueError("a month has no length")
        unit_count, lost_ns = divmod(
            days * calendar_text.DAY_S * UNIT_PER_S["ns"] + nanoseconds,
            UNIT_PER_S["ns"] // UNIT_PER_S[unit],
        )
        if lost_ns:
            raise ValueError(f"it has more digits than {unit}")
        return unit_count
    unit_count_exact = _parse_decimal(value) * UNIT_PER_S[unit]
    if unit_count_exact != unit_count_exact.to_integral_value():
        raise ValueError(f"it has more digits than {unit}")
    return int(unit_count_exact)


def _parse_interval_value(value: Any) -> pa.MonthDayNano:
    if isinstance(value, str):
        return pa.MonthDayNano(calendar_text.parse_interval(value))
    return pa.MonthDayNano((0, 0, _parse_duration(value, "ns")))


def _build_nested(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _build_lists(values, kind)
    if types.is_map(kind):
        return _build_maps(values, kind)
    if types.is_struct(kind):
        return _build_structs(values, kind)
    raise ValueError("no JSON value has this type")


def _build_lists(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if not all(value is None or isinstance(value, list) for value in values):
        raise ValueError("it is no list")
    items = _build_column_values(
        [item for value in values if value for item in value], kind.value_type
    )
    list_type = pa.list_(kind.value_type)
    return pa.ListArray.from_arrays(_build_offsets(values), items, type=list_type).cast(kind)


def _build_maps(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if not all(value is None or isinstance(value, dict) for value in values):
        raise ValueError("it is no mapping")
    pairs = [pair for value in values if value for pair in value.items()]
    keys = _build_column_values(
        [_parse_map_key(key, kind.key_type) for key, _ in pairs], kind.key_type
    )
    items = _build_column_values([item for _, item in pairs], kind.item_type)
    return pa.MapArray.from_arrays(_build_offsets(values), keys, items, type=kind)


def _parse_map_key(text: str, kind: pa.DataType) -> Any:
    """Read a mapping's key, which JSON has as text, as the value that it was."""
    return {"true": True, "false": False}.get(text, text) if pa.types.is_boolean(kind) else text


def _build_structs(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if not all(value is None or isinstance(value, dict) for value in values):
        raise ValueError("it is no mapping")
    names = {field.name for field in kind}
    for value in values:
        if value is not None and not value.keys() <= names:
            raise ValueError(f"it has a field {min(value.keys() - names)!r}, which its type lacks")
    columns = [
        _build_column_values(
            [None if value is None else value.get(field.name) for value in values], field.type
        )
        for field in kind
    ]
    null_mask = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=null_mask)


def _build_offsets(values: Sequence[Any]) -> pa.Array:
    """Say where each list's items begin; a list that is null has no beginning."""
    offsets: list[int | None] = []
    at = 0
    for value in values:
        offsets.append(None if value is None else at)
        at += len(value or ())
    return pa.array([*offsets, at], pa.int32())
