"""A result on a terminal: as a table of its rows, or as a tree of its values."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from noetl_cli import terminal_output
from noetl_cli.planner.step_result import StepResult, find_result_rows
from noetl_contracts import codec
from noetl_contracts.payloads import PARQUET_MEDIA_TYPE

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
    rows = find_result_rows(data)
    names = list_column_names(data)
    if not rows:
        return [] if names else None
    if names and all(isinstance(row, list) for row in rows):
        return [dict(zip(names, row, strict=False)) for row in rows]
    if not _is_loop_result(data):
        return list(rows) if all(isinstance(row, dict) and row for row in rows) else None
    return _list_item_rows(rows)


def list_column_names(data: Any) -> list[str]:
    """Return the names of the columns that a table says it has."""
    named = data.get("columns") if isinstance(data, dict) else None
    if not isinstance(named, list):
        return []
    return [str(item.get("name") if isinstance(item, dict) else item) for item in named]


def _is_loop_result(data: Any) -> bool:
    return isinstance(data, dict) and "rows" not in data and isinstance(data.get("results"), list)


def _list_item_rows(items: list[Any]) -> list[Row] | None:
    """Return a row an item, or the rows of items that are tables; items that failed are empty."""
    present = [item for item in items if item is not None]
    if not present or not all(isinstance(item, dict) and item for item in present):
        return None
    if all(_is_table(item) for item in present):
        tables = [(number, item["rows"]) for number, item in enumerate(items) if item is not None]
        return [{ITEM: number, **row} for number, rows in tables for row in rows]
    rows = [_expand_mappings(item or {}) for item in items]
    if len(present) < len(items):
        rows = [{ITEM: number, **row} for number, row in enumerate(rows)]
    return _drop_repeated_columns(rows)


def _is_table(item: Any) -> bool:
    rows = item.get("rows")
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)


def _expand_mappings(row: Row, *, before: str = "", depth: int = 1) -> Row:
    """Write fields of mappings as columns of their own; a dot in a name would be ambiguous."""
    columns: Row = {}
    has_dots = any("." in name for name in row)
    for name, value in row.items():
        path = f"{before}{name}"
        is_mapping = isinstance(value, dict) and value and name not in _NOT_EXPANDED
        if is_mapping and not has_dots and depth < EXPANDED_DEPTH_MAX:
            columns |= _expand_mappings(value, before=f"{path}.", depth=depth + 1)
        else:
            columns[path] = value
    return columns


def _drop_repeated_columns(rows: list[Row]) -> list[Row]:
    """Leave out columns of fields whose values another column shows, as `body.*` of `data.*`."""
    groups: dict[str, dict[str, list[Any]]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        group, dot, field = name.partition(".")
        if dot:
            groups.setdefault(group, {})[field] = [row.get(name) for row in rows]
    encoded_groups: set[bytes] = set()
    repeated: set[str] = set()
    for group, columns in groups.items():
        values = codec.encode_json(columns)
        if values in encoded_groups:
            repeated.add(group)
        encoded_groups.add(values)
    return [
        {name: value for name, value in row.items() if name.partition(".")[0] not in repeated}
        for row in rows
    ]


ROWS_SHOWN_MAX = 20
COLUMNS_SHOWN_MAX = 12
CELL_CHARACTERS_MAX = 60
NODES_SHOWN_MAX = 60
DEPTH_SHOWN_MAX = 6
# Lines of a file are as long as they are; a terminal has its own width.
FILE_COLUMNS = 1000


def print_result(result: StepResult, *, whole: str) -> None:
    """Print a result; `whole` is the command that gives all of it."""
    console = terminal_output.open_console()
    if not console.is_terminal:
        console.width = FILE_COLUMNS
    rows = find_rows(result.data)
    cuts = _print_tree(console, result) if rows is None else _print_table(console, result, rows)
    if cuts:
        terminal_output.print_note(f"{'; '.join(cuts)}. All of it: {whole}")


def format_place(result: StepResult) -> str:
    """Say where a result lies, in which form, and which columns its schema has."""
    place = f"It lies in: {terminal_output.flatten_text(result.tier or '')}"
    if result.schema is None:
        return place
    columns = [
        f"{column['name']} {column['type']}{'' if column['nullable'] else ' not null'}"
        for column in result.schema["columns"][:COLUMNS_SHOWN_MAX]
    ]
    more = result.schema["total"] - len(columns)
    schema = f"{', '.join(columns)}{f', and {more:,} more' if more else ''}"
    form = "Parquet" if result.media_type == PARQUET_MEDIA_TYPE else "Arrow"
    return f"{place}, as {form}: {terminal_output.flatten_text(schema)}"


def _print_table(console: Console, result: StepResult, rows: list[dict[str, Any]]) -> list[str]:
    column_names = list_column_names(result.data)
    names = column_names or list(dict.fromkeys(name for row in rows for name in row))
    types = result.data.get("types") if isinstance(result.data, dict) else None
    type_by_name = dict(zip(column_names, types, strict=False)) if isinstance(types, list) else {}
    # A title of the table itself would be as narrow as its columns.
    console.print(Text(_format_result_title(result), style="bold"))
    table = Table(box=None, pad_edge=False)
    for name in names[:COLUMNS_SHOWN_MAX]:
        numbers = all(isinstance(row.get(name), int | float | None) for row in rows)
        kind = f"\n{type_by_name[name]}" if name in type_by_name else ""
        head = Text(terminal_output.flatten_text(name) + terminal_output.escape_controls(kind))
        table.add_column(head, justify="right" if numbers else "left", overflow="fold")
    page = rows[:ROWS_SHOWN_MAX]
    texts = [[_format_cell(row.get(name)) for name in names[:COLUMNS_SHOWN_MAX]] for row in page]
    for row in texts:
        table.add_row(*(Text(_shorten_cell(text)) for text in row))
    console.print(table, soft_wrap=False)
    return [
        *_list_row_cuts(result, shown_count=len(page), read_count=len(rows)),
        *_list_table_cuts(texts, columns=len(names)),
    ]


def _list_row_cuts(result: StepResult, *, shown_count: int, read_count: int) -> Iterator[str]:
    """Say which rows are not shown; `read_count` counts those that were read."""
    items = len(find_result_rows(result.data) or ())
    total = items if result.total is None else result.total
    if read_count != items:
        # Each item of a loop gave a table.
        if shown_count < read_count or items < total:
            yield f"{shown_count:,} rows of the first {items:,} of {total:,} items are shown"
    elif shown_count < total:
        yield f"{shown_count:,} of {total:,} rows are shown"


def _list_table_cuts(texts: list[list[str]], *, columns: int) -> Iterator[str]:
    if columns > COLUMNS_SHOWN_MAX:
        yield f"{COLUMNS_SHOWN_MAX} of {columns} columns are shown"
    if any(len(text) > CELL_CHARACTERS_MAX for row in texts for text in row):
        yield "long values are cut (…)"


def _print_tree(console: Console, result: StepResult) -> list[str]:
    tree = Tree(Text(_format_result_title(result), style="bold"))
    growth = _BoundedTree()
    value = result.error if result.error is not None else drop_repeated_commands(result.data)
    growth.add_value(tree, value, depth=1)
    console.print(tree, soft_wrap=False)
    cuts = ["values that are long, deep or many are cut (…)"] if growth.is_cut else []
    total = len(find_result_rows(result.data) or ())
    if result.total is not None and total < result.total:
        cuts.insert(0, f"{total:,} of {result.total:,} rows are shown")
    return cuts


def drop_repeated_commands(data: Any) -> Any:
    """Leave out what a result of statements tells of them a second and a third time.

    `command_0` is `commands[0]`, and of a single statement both are the result itself.
    """
    commands = data.get("commands") if isinstance(data, dict) else None
    if not isinstance(commands, list):
        return data
    named = {f"command_{number}": command for number, command in enumerate(commands)}
    repeated = {name for name, command in named.items() if data.get(name) == command}
    if len(commands) == 1 and isinstance(commands[0], dict) and commands[0].items() <= data.items():
        repeated.add("commands")
    return {name: value for name, value in data.items() if name not in repeated}


class _BoundedTree:
    """Adds fields to a tree until it is as large as may be shown."""

    def __init__(self) -> None:
        self._nodes = 0
        self.is_cut = False

    def add_value(self, tree: Tree, value: Any, *, depth: int) -> None:
        """Add a value below a node."""
        for name, item in _list_children(value):
            if self._nodes >= NODES_SHOWN_MAX:
                self.is_cut = True
                tree.add(Text("…"))
                return
            self._nodes += 1
            has_children = isinstance(item, dict | list) and len(item) > 0
            if has_children and depth < DEPTH_SHOWN_MAX:
                self.add_value(tree.add(Text(_shorten_cell(name))), item, depth=depth + 1)
                continue
            text = _format_cell(item)
            self.is_cut = self.is_cut or len(text) > CELL_CHARACTERS_MAX
            tree.add(
                Text(
                    f"{_shorten_cell(name)}: {_shorten_cell(text)}" if name else _shorten_cell(text)
                )
            )


def _list_children(value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case Mapping():
            yield from ((str(name), item) for name, item in value.items())
        case list():
            yield from ((str(number), item) for number, item in enumerate(value))
        case _:
            yield "", value


def _format_result_title(result: StepResult) -> str:
    state = "error" if result.error is not None else "result"
    return terminal_output.flatten_text(f"{state} of step {result.step!r}")


def _format_cell(value: Any) -> str:
    """Write a value on one line: text as it is, everything else as JSON, no digit lost."""
    text = value if isinstance(value, str) else codec.encode_json(value).decode()
    return terminal_output.escape_controls(
        " ".join(text.split()) if isinstance(value, str) else text
    )


def _shorten_cell(text: str) -> str:
    return text if len(text) <= CELL_CHARACTERS_MAX else text[: CELL_CHARACTERS_MAX - 1] + "…"
