"""Rows as JSON values, and the Arrow tables that hold them."""

from collections.abc import Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from noetl_contracts import codec
from noetl_storage.arrow import table_schema
from noetl_storage.arrow.json_columns import UnfitCell, build_column
from noetl_storage.arrow.table_schema import Kinds, SchemaMismatch

# Up to here a float holds every integer.
_FLOAT_INTEGER_MAX = 2**53
_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)


class RowTable(NamedTuple):
    """Rows, their columns where the value names them, and the types of columns that have one."""

    rows: list[dict[str, Any]]
    columns: list[str] | None = None
    kinds: Kinds = MappingProxyType({})

    def column_names(self) -> list[str]:
        """Return the columns: those that are named, else those that any row has."""
        return self.columns or list(dict.fromkeys(name for row in self.rows for name in row))


def read_row_table(value: Any) -> RowTable | None:
    """Read rows from a list of mappings or a tabular mapping; None when it is neither.

    Raises `SchemaMismatch` for `types` that do not say the types of the columns, and for a row of
    another length than they are or with a value for none of them.
    """
    if isinstance(value, dict):
        inner = value.get("data")
        if "rows" not in value and isinstance(inner, dict) and "rows" in inner:
            return read_row_table(inner)
        return _read_tabular(value)
    if isinstance(value, list) and all(isinstance(row, dict) for row in value):
        return RowTable(value)
    return None


def _read_tabular(value: dict[Any, Any]) -> RowTable | None:
    column_names, rows, types = value.get("columns"), value.get("rows"), value.get("types")
    if not isinstance(column_names, list | tuple | None) or not isinstance(rows, list):
        return None
    columns = (
        None if column_names is None else [str(_get_column_name(name)) for name in column_names]
    )
    has_types = columns is not None and isinstance(types, list | tuple)
    if all(isinstance(row, dict) for row in rows):
        if columns is not None:
            _check_known_columns(columns, rows)
        kinds = table_schema.parse_column_kinds(columns, types) if has_types else {}  # type: ignore[arg-type]  # both are lists then
        return RowTable(rows, columns, kinds)
    if columns is not None and all(isinstance(row, list) for row in rows):
        kinds = table_schema.parse_column_kinds(columns, types) if has_types else {}  # type: ignore[arg-type]  # as above
        return RowTable(_name_values(columns, rows), columns, kinds)
    return None


def _check_known_columns(columns: list[str], rows: list[dict[str, Any]]) -> None:
    """Refuse a value without a column, which some targets would leave out and others write."""
    known = set(columns)
    for index, row in enumerate(rows):
        if row.keys() <= known:
            continue
        strange = next(name for name in row if name not in known)
        text = (
            f"row {index} has a value {strange!r:.80} that is none of the columns "
            f"({', '.join(columns):.200}): name it among them, or leave it out of the rows"
        )
        raise SchemaMismatch(text)


def _name_values(columns: list[str], rows: list[list[Any]]) -> list[dict[str, Any]]:
    """Make mappings of rows that are lists: a value without a column would be lost."""
    for index, row in enumerate(rows):
        if len(row) != len(columns):
            text = (
                f"row {index} has {len(row)} values for {len(columns)} columns "
                f"({', '.join(columns):.200}): give each row one value a column, null for none"
            )
            raise SchemaMismatch(text)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def join_results(results: list[Any]) -> Any:
    """Lay the rows of tables below each other; a list of anything else stays what it is.

    Raises `UnlikeTypes` for a column whose types no type holds both of.
    """
    is_table = [
        isinstance(result, dict) and "rows" in result and "columns" in result for result in results
    ]
    if not is_table or not all(is_table):
        return results
    tables = [item for item in map(read_row_table, results) if item is not None]
    names = list(dict.fromkeys(name for item in tables for name in item.columns or ()))
    joined_table: dict[str, Any] = {
        "columns": names,
        "rows": [row for item in tables for row in item.rows],
    }
    kinds = table_schema.unify_kinds([(item.kinds, item.columns or []) for item in tables])
    if names and len(kinds) == len(names):
        joined_table["types"] = [table_schema.format_arrow_type(kinds[name]) for name in names]
    return joined_table


def unite_tables(parts: Sequence[RowTable], *, part_column: str) -> RowTable:
    """Lay tables below each other; a column counts the parts from 0. Raises `UnlikeTypes`."""
    rows = [{**row, part_column: at} for at, item in enumerate(parts) for row in item.rows]
    names_by_part = [[*part.column_names(), part_column] for part in parts]
    columns = list(
        dict.fromkeys(name for names in names_by_part for name in names if name != part_column)
    )
    kinds_by_part = [{**item.kinds, part_column: pa.int64()} for item in parts]
    kinds = table_schema.unify_kinds(list(zip(kinds_by_part, names_by_part, strict=True)))
    return RowTable(rows, [*columns, part_column], kinds)


def _get_column_name(column: Any) -> Any:
    return column.get("name") if isinstance(column, dict) else column


def build_table(
    rows: list[dict[str, Any]], columns: Sequence[str] | None = None, kinds: Kinds | None = None
) -> pa.Table:
    """Build a table; a column of `kinds` has that type, and one without has that of its values.

    A column of mixed values holds text, with what is not text as JSON; numbers stay exact numbers.
    Keys that are no text, as templates make them, name their columns as text. Raises `UnfitCell`.
    """
    names = columns or RowTable(rows).column_names()
    column_kinds = kinds or {}
    array_by_name: dict[str, pa.Array] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        kind = column_kinds.get(name)
        text = name if isinstance(name, str) else codec.encode_text(name)
        array_by_name[text] = (
            _build_by_values(text, values) if kind is None else build_column(text, values, kind)
        )
    return pa.table(array_by_name)


def _build_by_values(name: str, values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds and kinds <= {int, float}:
        return _build_numbers(name, values, kinds)
    if len(kinds) > 1:
        return _build_texts(values)
    try:
        array = pa.array(values)
    except (pa.ArrowException, OverflowError):
        return _build_texts(values)
    # A mapping without keys has no type that a query could name.
    return _build_texts(values) if pa.types.is_struct(array.type) and not len(array.type) else array


def _build_numbers(name: str, values: list[Any], kinds: set[type]) -> pa.Array:
    """Build a column of numbers: of the usual types, else of one that holds all exactly."""
    integers = [value for value in values if type(value) is int]
    if int not in kinds:
        return pa.array(values, pa.float64())
    low, high = min(integers), max(integers)
    if float in kinds and low >= -_FLOAT_INTEGER_MAX and high <= _FLOAT_INTEGER_MAX:
        return pa.array(values, pa.float64())
    if float not in kinds and low in _INT64 and high in _INT64:
        return pa.array(values, pa.int64())
    if float not in kinds and low in _UINT64 and high in _UINT64:
        return pa.array(values, pa.uint64())
    exact = [None if v is None else Decimal(repr(v) if type(v) is float else v) for v in values]
    try:
        return pa.array(exact)
    except (pa.ArrowException, ValueError) as problem:
        fractions_text = " and fractions" if float in kinds else ""
        text = (
            f"column '{name}' holds numbers from {low} to {high}{fractions_text}, and no type "
            f"of number holds all of them exactly ({problem}): give them as text"
        )
        raise UnfitCell(text) from problem


def _build_texts(values: list[Any]) -> pa.Array:
    texts = (
        v if v is None or isinstance(v, str) else codec.encode_json(v).decode() for v in values
    )
    return pa.array(list(texts), pa.string())
