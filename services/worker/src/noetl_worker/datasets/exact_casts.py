"""Columns of another type with the values that they had: Arrow's own cast changes some."""

from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from noetl_worker.datasets import text_casts


def cast_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column; a float may be the nearest one, and nothing else may change.

    Raises `ArrowInvalid` or `ArrowNotImplementedError`.
    """
    if column.type.equals(kind):
        return column
    values = column.cast(kind)
    _check_values(column, values)
    return values


def _check_values(column: pa.Array, values: pa.Array) -> None:
    """Raise `ArrowInvalid` for values that a cast changed."""
    before, after, types = column.type, values.type, pa.types
    if before.equals(after):
        return
    if types.is_list(before) and types.is_list(after):
        _check_values(column.flatten(), values.flatten())
    elif types.is_struct(before) and types.is_struct(after):
        for field in after:
            index = before.get_field_index(field.name)
            if index >= 0:
                _check_values(column.field(index), values.field(field.name))
    else:
        _check_flat_values(column, values)


def _check_flat_values(column: pa.Array, values: pa.Array) -> None:
    before, after, types = column.type, values.type, pa.types
    if types.is_string(before) or types.is_large_string(before):
        text_casts.check_numbers(column, values)
        if types.is_decimal(after):
            _check_decimals(column, values, text_casts.fit_digits(column, after))
    elif types.is_boolean(before) and _is_number(after):
        if column.null_count < len(column):
            raise pa.ArrowInvalid(f"true and false are no {after}")
    elif types.is_boolean(after):
        _refuse_any(column, values, pc.not_equal(values.cast(before), column))
    elif types.is_floating(before) and types.is_floating(after):
        _refuse_any(column, values, pc.and_(pc.is_inf(values), pc.is_finite(column)))
    elif types.is_floating(before) and types.is_decimal(after):
        _check_decimals(column, values, pc.equal(values.cast(before), column))


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _check_decimals(column: pa.Array, values: pa.Array, is_same: pa.Array) -> None:
    """Refuse decimals of other digits than a column writes, where it is not known yet."""
    doubtful_indexes = pc.indices_nonzero(pc.invert(is_same))
    pairs = zip(
        column.take(doubtful_indexes).to_pylist(),
        values.take(doubtful_indexes).to_pylist(),
        strict=True,
    )
    for number, value in pairs:
        if value != _parse_decimal(number):
            raise pa.ArrowInvalid(f"{number} is no {values.type}")


def _parse_decimal(number: Any) -> Decimal | None:
    try:
        return Decimal(str(number))
    except InvalidOperation:
        return None


def _refuse_any(column: pa.Array, values: pa.Array, is_other: pa.Array) -> None:
    first = pc.index(is_other, value=True).as_py()
    if first >= 0:
        raise pa.ArrowInvalid(f"{column[first].as_py()} is no {values.type}")
