"""Casts Arrow columns to types that Spark has, and to the texts that `COPY` of PostgreSQL reads."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from noetl_storage.arrow import arrow_values, table_schema
from noetl_storage.arrow.table_schema import DECIMAL_DIGITS_MAX, SchemaMismatch

# Years 1 to 9999 in microseconds since 1970; others are written in PostgreSQL's own way.
_MICROSECONDS_MIN = -62_135_596_800_000_000
_MICROSECONDS_MAX = 253_402_300_799_999_999
# Such decimals are exact as floats, whose texts have no exponent.
_FLOAT_DIGITS_MAX = 15
_FLOAT_SCALE_MAX = 4


def find_column_texts(values: pa.Array) -> pa.Array | None:
    """Write a column as texts; None for a type of which each value has to be looked at."""
    kind, types = values.type, pa.types
    if types.is_string(kind) or types.is_integer(kind) or types.is_date(kind):
        return values.cast(pa.string())
    if types.is_boolean(kind):
        return values.cast(pa.string())
    if types.is_decimal128(kind):
        return _find_decimals(values)
    if types.is_timestamp(kind) and kind.unit == "us" and kind.tz in (None, "UTC"):
        return _find_moments(values, zone="" if kind.tz is None else "+00:00")
    return None


def _find_decimals(values: pa.Array) -> pa.Array | None:
    kind = values.type
    if kind.precision > _FLOAT_DIGITS_MAX or not 0 <= kind.scale <= _FLOAT_SCALE_MAX:
        return None
    texts = values.cast(pa.string())
    if kind.scale == 0:
        return texts
    # 1.50 is 1.5, and 1.00 is 1.0.
    return pc.replace_substring_regex(texts, r"(\.\d+?)0+$", r"\1")


def _find_moments(values: pa.Array, *, zone: str) -> pa.Array | None:
    count = values.cast(pa.int64())
    span = pc.min_max(count)
    minimum, maximum = span["min"].as_py(), span["max"].as_py()
    if minimum is not None and (minimum < _MICROSECONDS_MIN or maximum > _MICROSECONDS_MAX):
        return None
    # Without a zone the cast needs no look at zones' rules: UTC has none.
    texts = count.cast(pa.timestamp("us")).cast(pa.string())
    texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    texts = pc.replace_substring_regex(texts, r"\.000000$", "")
    return pc.binary_join_element_wise(texts, zone, "") if zone else texts


class UnfitForSpark(SchemaMismatch):
    """A column holds values that Spark has no type for."""


def fit_table(table: pa.Table) -> pa.Table:
    """Cast what Spark has no type for: to a wider number, else to text; each value exactly.

    Raises `SchemaMismatch` that names the column where that cannot be.
    """
    table_schema.check_portable(table)
    schema = fit_schema(table.schema)
    return table if schema.equals(table.schema) else cast_table(table, schema)


def fit_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of `fit_table`; what a column's metadata said is left out."""
    return pa.schema(
        [pa.field(column_field.name, _fit_type(column_field.type)) for column_field in schema]
    )


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give a table the columns and types of a schema; what it lacks is null.

    Raises `UnfitForSpark`.
    """
    columns = [_fit_column(table, field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _fit_column(table: pa.Table, field: pa.Field) -> Any:
    index = table.schema.get_field_index(field.name)
    if index < 0:
        return pa.nulls(table.num_rows, field.type)
    column = table.column(index)
    if column.type.equals(field.type):
        return column
    try:
        return _cast_column(column, field.type)
    except (pa.ArrowException, ValueError, ArithmeticError) as problem:
        text = (
            f"column '{field.name}' is {table_schema.format_arrow_type(column.type)}, and Spark "
            f"holds {field.type} instead, which some of its values do not fit ({problem}): cast "
            "it where it is made, to fewer digits or to text"
        )
        raise UnfitForSpark(text) from problem


def _cast_column(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind) and _is_text_in_json(column.type):
        # It is a text there, the same as in JSON.
        texts = [
            _to_text(value)
            for chunk in column.chunks
            for value in arrow_values.column_to_values(chunk)
        ]
        return pa.array(texts, kind)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    return column.cast(kind)


def _to_text(value: Any) -> str | None:
    return None if value is None else str(value)


def _is_text_in_json(kind: pa.DataType) -> bool:
    is_uuid = isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"
    return is_uuid or bool(pa.types.is_time(kind) or pa.types.is_interval(kind))


def _fit_type(kind: pa.DataType) -> pa.DataType:  # noqa: C901 - one arm per family of types
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        is_uuid = kind.extension_name == "arrow.uuid"
        return pa.string() if is_uuid else _fit_type(kind.storage_type)
    if types.is_null(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_uint8(kind) or types.is_uint16(kind) or types.is_uint32(kind):
        return pa.int64()
    if types.is_uint64(kind):
        return pa.decimal128(20, 0)
    if types.is_float16(kind):
        return pa.float32()
    if types.is_decimal(kind):
        digits = min(kind.precision, DECIMAL_DIGITS_MAX)
        return pa.decimal128(digits, min(kind.scale, digits))
    if types.is_time(kind) or types.is_interval(kind):
        return pa.string()
    if types.is_date64(kind):
        return pa.date32()
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz is not None else None)
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_dictionary(kind):
        return _fit_type(kind.value_type)
    return _fit_nested_type(kind)


def _fit_nested_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(kind):
        return pa.struct(
            [pa.field(inner_field.name, _fit_type(inner_field.type)) for inner_field in kind]
        )
    if types.is_map(kind):
        return table_schema.build_map_type(_fit_type(kind.key_type), _fit_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_fit_type(kind.value_type))
    return kind
