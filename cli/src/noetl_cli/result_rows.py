"""The rows that a result is shown as: its own, those of a loop's items, or the items themselves."""

from typing import Any

from noetl_cli.step_result import rows_in
from noetl_contracts import codec

Row = dict[str, Any]
ITEM = "item"
EXPANDED_DEPTH_MAX = 3
# Of an HTTP response there are more of them than fields of its data.
_NOT_EXPANDED = frozenset({"headers"})


def find_rows(data: Any) -> list[Row] | None:
    """Return rows that have columns; None where a tree shows more.

    Items of a loop that are tables give their rows, beside the number of the item. Columns of
    mappings become a column a field, named `column.field`.
    """
    rows = rows_in(data)
    names = column_names(data)
    if not rows:
        return [] if names else None
    if names and all(isinstance(row, list) for row in rows):
        return [dict(zip(names, row, strict=False)) for row in rows]
    if not _is_loop(data):
        return list(rows) if all(isinstance(row, dict) and row for row in rows) else None
    return _rows_of_items(rows)


def column_names(data: Any) -> list[str]:
    """Return the names of the columns that a table says it has."""
    named = data.get("columns") if isinstance(data, dict) else None
    if not isinstance(named, list):
        return []
    return [str(one.get("name") if isinstance(one, dict) else one) for one in named]


def _is_loop(data: Any) -> bool:
    return isinstance(data, dict) and "rows" not in data and isinstance(data.get("results"), list)


def _rows_of_items(items: list[Any]) -> list[Row] | None:
    """Return a row an item, or the rows of items that are tables; items that failed are empty."""
    there = [item for item in items if item is not None]
    if not there or not all(isinstance(item, dict) and item for item in there):
        return None
    if all(_is_table(item) for item in there):
        tables = [(number, item["rows"]) for number, item in enumerate(items) if item is not None]
        return [{ITEM: number, **row} for number, rows in tables for row in rows]
    rows = [_expanded(item or {}) for item in items]
    if len(there) < len(items):
        rows = [{ITEM: number, **row} for number, row in enumerate(rows)]
    return _without_repeated(rows)


def _is_table(item: Any) -> bool:
    rows = item.get("rows")
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)


def _expanded(row: Row, *, before: str = "", depth: int = 1) -> Row:
    """Write fields of mappings as columns of their own; a dot in a name would be ambiguous."""
    columns: Row = {}
    has_dots = any("." in name for name in row)
    for name, value in row.items():
        path = f"{before}{name}"
        is_mapping = isinstance(value, dict) and value and name not in _NOT_EXPANDED
        if is_mapping and not has_dots and depth < EXPANDED_DEPTH_MAX:
            columns |= _expanded(value, before=f"{path}.", depth=depth + 1)
        else:
            columns[path] = value
    return columns


def _without_repeated(rows: list[Row]) -> list[Row]:
    """Leave out columns of fields whose values another column shows, as `body.*` of `data.*`."""
    groups: dict[str, dict[str, list[Any]]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        group, dot, field = name.partition(".")
        if dot:
            groups.setdefault(group, {})[field] = [row.get(name) for row in rows]
    seen: set[bytes] = set()
    repeated: set[str] = set()
    for group, columns in groups.items():
        values = codec.encode(columns)
        if values in seen:
            repeated.add(group)
        seen.add(values)
    return [
        {name: value for name, value in row.items() if name.partition(".")[0] not in repeated}
        for row in rows
    ]
