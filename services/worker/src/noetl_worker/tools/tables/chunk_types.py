"""Chunks of rows as tables of the columns and types that the first chunk has."""

from typing import Any

import pyarrow as pa

from noetl_storage.arrow import row_tables
from noetl_storage.arrow.table_schema import Kinds
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.tables import transfer_rows


def build_later_chunk(
    rows: list[dict[str, Any]], kinds: Kinds, schema: pa.Schema, *, advice: str
) -> pa.Table:
    """Build the table of rows that follow a first chunk of this schema.

    Raises `ToolFailure` for a column that the first has not, and for a value that would change.
    """
    for name in transfer_rows.list_columns(rows):
        if name not in schema.names:
            noun = "column of the first chunk"
            raise transfer_rows.build_unknown_failure(noun, name, schema.names)
    table = row_tables.build_table(rows, schema.names, kinds)
    for field in schema:
        stored_type = table.schema.field(field.name).type
        if not _is_alike(stored_type, field.type):
            problem = f"column '{field.name}' is {stored_type}, and {field.type} there"
            raise _build_unlike_failure(problem, advice)
    try:
        return table.cast(schema)
    except (pa.ArrowException, ValueError) as problem:
        raise _build_unlike_failure(str(problem), advice) from problem


def _build_unlike_failure(problem: str, advice: str) -> ToolFailure:
    text = f"rows of a later chunk do not have the types of the first: {problem}; {advice}"
    return ToolFailure(build_error("validation", text, source="transfer"))


def _is_alike(data_type: pa.DataType, expected_type: pa.DataType) -> bool:
    """Tell whether a cast keeps what values are: Arrow also reads texts as numbers, say."""
    types = pa.types
    if isinstance(data_type, pa.BaseExtensionType):
        return _is_alike(data_type.storage_type, expected_type)
    if types.is_dictionary(data_type):
        return _is_alike(data_type.value_type, expected_type)
    if types.is_null(data_type) or data_type.equals(expected_type):
        return True
    if types.is_integer(data_type):
        return bool(
            types.is_integer(expected_type)
            or types.is_floating(expected_type)
            or types.is_decimal(expected_type)
        )
    if types.is_floating(data_type):
        return bool(types.is_floating(expected_type) or types.is_integer(expected_type))
    if types.is_decimal(data_type):
        return bool(types.is_decimal(expected_type) or types.is_integer(expected_type))
    if types.is_list(data_type) or types.is_large_list(data_type):
        is_list = types.is_list(expected_type) or types.is_large_list(expected_type)
        return bool(is_list and _is_alike(data_type.value_type, expected_type.value_type))
    if types.is_large_string(data_type) or types.is_string_view(data_type):
        return bool(types.is_string(expected_type))
    if types.is_large_binary(data_type) or types.is_binary_view(data_type):
        return bool(types.is_binary(expected_type))
    return bool(data_type.id == expected_type.id)
