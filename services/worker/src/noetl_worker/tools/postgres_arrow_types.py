"""The Arrow type of a PostgreSQL column.

The server describes a column by its type and a type modifier, which holds the precision and scale
of `numeric(10, 2)`. The client passes on the type alone. To learn the modifier of a query's column
takes a view of the query, or a second connection that speaks the protocol, for each statement. So
this module decides:

* Where the modifier is known (a table's column, from `pg_attribute`), `numeric(p, s)` is a decimal
  of that precision and scale.
* Where it is not known, the decimal type comes from the column's values: `decimal_type_of` returns
  the smallest type that holds all of them exactly. It is `decimal128` up to 38 digits and
  `decimal256` up to 76. A column with more digits, or with NaN or Infinity, is text.

`arrow_type_of` returns text for such a column; `has_open_digits` finds it beforehand.
"""

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

DECIMAL128_DIGITS_MAX = 38
DECIMAL256_DIGITS_MAX = 76
# What `pg_attribute.atttypmod` holds where a type has no modifier.
NO_MODIFIER = -1
_HEADER_BYTES = 4
_PRECISION_SHIFT = 16
_SCALE_MASK = 0x7FF
_SCALE_SIGN = 0x400

_ARROW_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.uint32(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "interval": pa.month_day_nano_interval(),
    "uuid": pa.uuid(),
    "json": pa.json_(),
    "jsonb": pa.json_(),
    "bytea": pa.binary(),
}
_NUMERIC = "numeric"


def arrow_type_of(attribute: Any, modifier: int | None = None) -> pa.DataType:
    """Return the Arrow type of a column of a prepared statement, or of a type name.

    `attribute` is an attribute of the client, or the type's name as the client spells it (`int4`,
    `numeric[]`). `modifier` is the column's `atttypmod`, where it is known.
    """
    type_name = _type_name(attribute)
    if type_name.endswith("[]"):
        return pa.list_(arrow_type_of(type_name.removesuffix("[]"), modifier))
    if type_name == _NUMERIC:
        return _decimal_type(*digits_of(modifier)) or pa.string()
    return _ARROW_TYPES.get(type_name, pa.string())


def has_open_digits(attribute: Any, modifier: int | None = None) -> bool:
    """Tell whether a column is a numeric whose precision and scale are not known."""
    type_name = _type_name(attribute).removesuffix("[]")
    return type_name == _NUMERIC and digits_of(modifier)[0] is None


def digits_of(modifier: int | None) -> tuple[int | None, int]:
    """Return the precision and scale that a numeric's type modifier holds, None if it has none."""
    if modifier is None or modifier < _HEADER_BYTES:
        return None, 0
    packed = modifier - _HEADER_BYTES
    # Eleven bits hold the scale, which may be negative.
    scale = ((packed & _SCALE_MASK) ^ _SCALE_SIGN) - _SCALE_SIGN
    return packed >> _PRECISION_SHIFT, scale


def decimal_type_of(values: Iterable[Any]) -> pa.DataType:
    """Return the smallest decimal type that holds every value exactly, else text.

    Values are decimals, whole numbers, their texts or None. A float is not accepted: it holds
    other digits than the column.
    """
    whole_digits, scale = 1, 0
    for value in values:
        if value is None:
            continue
        number = _decimal_of(value)
        if number is None or not number.is_finite():
            return pa.string()
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int), "a finite number has an exponent"
        scale = max(scale, -exponent)
        if number:
            whole_digits = max(whole_digits, number.adjusted() + 1)
    return _decimal_type(whole_digits + scale, scale) or pa.string()


def _decimal_of(value: Any) -> Decimal | None:
    assert not isinstance(value, float), "a float does not hold the digits of a numeric"
    try:
        return Decimal(value)
    except InvalidOperation:
        return None


def _decimal_type(precision: int | None, scale: int) -> pa.DataType | None:
    """Return a decimal type, None where Arrow has none."""
    if precision is None:
        return None
    # PostgreSQL allows a scale above the precision, and one below 0.
    precision = max(precision, scale) if scale >= 0 else precision - scale
    scale = max(scale, 0)
    if precision <= DECIMAL128_DIGITS_MAX:
        return pa.decimal128(precision, scale)
    if precision <= DECIMAL256_DIGITS_MAX:
        return pa.decimal256(precision, scale)
    return None


def _type_name(attribute: Any) -> str:
    return attribute if isinstance(attribute, str) else str(attribute.type.name)
