"""The Arrow type of a PostgreSQL column.

The server describes a column by its type and a type modifier, which holds the precision and scale
of `numeric(10, 2)`. The client passes on the type alone. To learn the modifier of a query's column
takes a view of the query, or a second connection that speaks the protocol, for each statement. So
this module decides:

* Where the modifier is known (a table's column, from `pg_attribute`), `numeric(p, s)` is a decimal
  of that precision and scale.
* Where it is not known, the decimal type comes from the column's values: `choose_decimal_type`
  returns the smallest type that holds all of them exactly. It is `decimal128` up to 38 digits and
  `decimal256` up to 76. A column with more digits, or with NaN or Infinity, is text.

`get_arrow_type` returns text for such a column; `has_open_digits` finds it beforehand.
"""

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import pyarrow as pa

from noetl_storage.arrow.table_schema import format_arrow_type
from noetl_worker.domain.numeric_digits import parse_digits

DECIMAL128_DIGITS_MAX = 38
DECIMAL256_DIGITS_MAX = 76

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


def get_arrow_type(attribute: Any, modifier: int | None = None) -> pa.DataType:
    """Return the Arrow type of a column of a prepared statement, or of a type name.

    `attribute` is an attribute of the client, or the type's name as the client spells it (`int4`,
    `numeric[]`). `modifier` is the column's `atttypmod`, where it is known.
    """
    type_name = _get_type_name(attribute)
    if type_name.endswith("[]"):
        return pa.list_(get_arrow_type(type_name.removesuffix("[]"), modifier))
    if type_name == _NUMERIC:
        return _build_decimal_type(*parse_digits(modifier)) or pa.string()
    return _ARROW_TYPES.get(type_name, pa.string())


def has_open_digits(attribute: Any, modifier: int | None = None) -> bool:
    """Tell whether a column is a numeric whose precision and scale are not known."""
    type_name = _get_type_name(attribute).removesuffix("[]")
    return type_name == _NUMERIC and parse_digits(modifier)[0] is None


def choose_decimal_type(values: Iterable[Any]) -> pa.DataType:
    """Return the smallest decimal type that holds every value exactly, else text.

    Values are decimals, whole numbers, their texts or None. A float is not accepted: it holds
    other digits than the column.
    """
    whole_digits, scale = 1, 0
    for value in values:
        if value is None:
            continue
        number = _parse_decimal(value)
        if number is None or not number.is_finite():
            return pa.string()
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int), "a finite number has an exponent"
        scale = max(scale, -exponent)
        if number:
            whole_digits = max(whole_digits, number.adjusted() + 1)
    return _build_decimal_type(whole_digits + scale, scale) or pa.string()


def _parse_decimal(value: Any) -> Decimal | None:
    assert not isinstance(value, float), "a float does not hold the digits of a numeric"
    try:
        return Decimal(value)
    except InvalidOperation:
        return None


def _build_decimal_type(precision: int | None, scale: int) -> pa.DataType | None:
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


def _get_type_name(attribute: Any) -> str:
    return attribute if isinstance(attribute, str) else str(attribute.type.name)


# Stand for numerics whose digits only the rows tell.
OPEN_NUMBER, OPEN_NUMBERS = "numeric", "numeric[]"


def list_column_types(attributes: Iterable[Any]) -> tuple[str, ...]:
    """Return what the statement tells of its columns' types."""
    return tuple(_format_type(str(column.type.name)) for column in attributes)


@lru_cache(maxsize=1024)
def _format_type(name: str) -> str:
    return name if has_open_digits(name) else format_arrow_type(get_arrow_type(name))


def list_row_types(types: tuple[str, ...], records: Sequence[Any]) -> tuple[str, ...]:
    """Return the types of all columns, with what only the rows tell; records are the client's."""
    if OPEN_NUMBER not in types and OPEN_NUMBERS not in types:
        return types
    return tuple(
        _choose_open_type(text, [record[place] for record in records])
        if text in (OPEN_NUMBER, OPEN_NUMBERS)
        else text
        for place, text in enumerate(types)
    )


def _choose_open_type(text: str, values: list[Any]) -> str:
    if text == OPEN_NUMBER:
        return format_arrow_type(choose_decimal_type(values))
    return format_arrow_type(pa.list_(choose_decimal_type(_flatten_values(values))))


def _flatten_values(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _flatten_values(value)
        else:
            yield value
