"""Rows as JSON values, and the Arrow tables that hold them."""

from typing import Any

import pyarrow as pa

from noetl_contracts import codec


def records(value: Any) -> tuple[list[dict[str, Any]], list[str] | None] | None:
    """Read rows from a list of mappings or a tabular mapping; None when it is neither.

    The second part names the columns where the value does.
    """
    columns: list[str] | None = None
    if isinstance(value, dict):
        inner = value.get("data")
        if "rows" not in value and isinstance(inner, dict) and "rows" in inner:
            return records(inner)
        named, value = value.get("columns"), value.get("rows")
        if not isinstance(named, list | tuple | None):
            return None
        columns = None if named is None else [str(_name(name)) for name in named]
    if not isinstance(value, list):
        return None
    if all(isinstance(row, dict) for row in value):
        return value, columns
    if columns is not None and all(isinstance(row, list) for row in value):
        return [dict(zip(columns, row, strict=False)) for row in value], columns
    return None


def joined(results: list[Any]) -> Any:
    """Lay the rows of tables below each other; a list of anything else stays what it is."""
    is_table = [isinstance(one, dict) and "rows" in one and "columns" in one for one in results]
    if not is_table or not all(is_table):
        return results
    found = [records(one) for one in results]
    names = dict.fromkeys(name for one in found if one for name in one[1] or ())
    return {"columns": list(names), "rows": [row for one in found if one for row in one[0]]}


def _name(column: Any) -> Any:
    return column.get("name") if isinstance(column, dict) else column


def table_of(rows: list[dict[str, Any]], columns: list[str] | None = None) -> pa.Table:
    """Build a table; a column of mixed types holds text, with what is not text as JSON.

    Keys that are no text, as templates make them, name their columns as text.
    """
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({_text(name): _column([row.get(name) for row in rows]) for name in names})


def _text(name: Any) -> str:
    return name if isinstance(name, str) else codec.text(name)


def _column(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {int, float} or len(kinds) == 1:
        try:
            found = pa.array(values)
        except (pa.ArrowException, OverflowError):
            return _texts(values)
        # A mapping without keys has no type that a query could name.
        return _texts(values) if pa.types.is_struct(found.type) and not len(found.type) else found
    return _texts(values)


def _texts(values: list[Any]) -> pa.Array:
    texts = (v if v is None or isinstance(v, str) else codec.encode(v).decode() for v in values)
    return pa.array(list(texts), pa.string())
