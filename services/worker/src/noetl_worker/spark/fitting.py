"""Arrow tables in the types that Spark knows."""

from typing import Any

import pyarrow as pa

from noetl_storage import arrow_values, table_schema
from noetl_storage.table_schema import DECIMAL_DIGITS_MAX, SchemaMismatch


class UnfitForSpark(SchemaMismatch):
    """A column holds values that Spark has no type for."""


def fitted(table: pa.Table) -> pa.Table:
    """Cast what Spark has no type for: to a wider number, else to text; each value exactly.

    Raises `SchemaMismatch` that names the column where that cannot be.
    """
    table_schema.check_portable(table)
    schema = fitted_schema(table.schema)
    return table if schema.equals(table.schema) else cast(table, schema)


def fitted_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of `fitted`; what a column's metadata said is left out."""
    return pa.schema([pa.field(one.name, _kind(one.type)) for one in schema])


def cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give a table the columns and types of a schema; what it lacks is null.

    Raises `UnfitForSpark`.
    """
    columns = [_column(table, field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(table: pa.Table, field: pa.Field) -> Any:
    index = table.schema.get_field_index(field.name)
    if index < 0:
        return pa.nulls(table.num_rows, field.type)
    found = table.column(index)
    if found.type.equals(field.type):
        return found
    try:
        return _cast(found, field.type)
    except (pa.ArrowException, ValueError, ArithmeticError) as problem:
        text = (
            f"column '{field.name}' is {table_schema.format_arrow_type(found.type)}, and Spark "
            f"holds {field.type} instead, which some of its values do not fit ({problem}): cast "
            "it where it is made, to fewer digits or to text"
        )
        raise UnfitForSpark(text) from problem


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind) and _is_shown(column.type):
        # It is a text there, the same as in JSON.
        texts = [_text(value) for chunk in column.chunks for value in arrow_values.values_of(chunk)]
        return pa.array(texts, kind)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    return column.cast(kind)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _is_shown(kind: pa.DataType) -> bool:
    is_uuid = isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"
    return is_uuid or bool(pa.types.is_time(kind) or pa.types.is_interval(kind))


def _kind(kind: pa.DataType) -> pa.DataType:  # noqa: C901 - one arm per family of types
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        is_uuid = kind.extension_name == "arrow.uuid"
        return pa.string() if is_uuid else _kind(kind.storage_type)
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
        return _kind(kind.value_type)
    return _nested(kind)


def _nested(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([pa.field(one.name, _kind(one.type)) for one in kind])
    if types.is_map(kind):
        return table_schema.map_type(_kind(kind.key_type), _kind(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_kind(kind.value_type))
    return kind
