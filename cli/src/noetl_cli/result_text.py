"""A step's result as people read it: a table of rows, or a tree of fields; what is cut is said."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from noetl_cli import render, result_rows
from noetl_cli.step_result import StepResult, rows_in
from noetl_contracts import codec

ROWS_SHOWN_MAX = 20
COLUMNS_SHOWN_MAX = 12
CELL_CHARACTERS_MAX = 60
NODES_SHOWN_MAX = 60
DEPTH_SHOWN_MAX = 6
# Lines of a file are as long as they are; a terminal has its own width.
FILE_COLUMNS = 1000


def print_result(result: StepResult, *, whole: str) -> None:
    """Print a result; `whole` is the command that gives all of it."""
    console = render.console()
    if not console.is_terminal:
        console.width = FILE_COLUMNS
    rows = result_rows.find_rows(result.data)
    cuts = _print_tree(console, result) if rows is None else _print_table(console, result, rows)
    if cuts:
        render.note(f"{'; '.join(cuts)}. All of it: {whole}")


def _print_table(console: Console, result: StepResult, rows: list[dict[str, Any]]) -> list[str]:
    own = result_rows.column_names(result.data)
    names = own or list(dict.fromkeys(name for row in rows for name in row))
    types = result.data.get("types") if isinstance(result.data, dict) else None
    type_by_name = dict(zip(own, types, strict=False)) if isinstance(types, list) else {}
    # A title of the table itself would be as narrow as its columns.
    console.print(Text(_title(result), style="bold"))
    table = Table(box=None, pad_edge=False)
    for name in names[:COLUMNS_SHOWN_MAX]:
        numbers = all(isinstance(row.get(name), int | float | None) for row in rows)
        kind = f"\n{type_by_name[name]}" if name in type_by_name else ""
        head = Text(render.one_line(name) + render.safe(kind))
        table.add_column(head, justify="right" if numbers else "left", overflow="fold")
    shown = rows[:ROWS_SHOWN_MAX]
    texts = [[_cell(row.get(name)) for name in names[:COLUMNS_SHOWN_MAX]] for row in shown]
    for row in texts:
        table.add_row(*(Text(_cut(text)) for text in row))
    console.print(table, soft_wrap=False)
    return [
        *_row_cuts(result, shown=len(shown), known=len(rows)),
        *_table_cuts(texts, columns=len(names)),
    ]


def _row_cuts(result: StepResult, *, shown: int, known: int) -> Iterator[str]:
    """Say which rows are not shown; `known` counts those that were read."""
    items = len(rows_in(result.data) or ())
    total = items if result.total is None else result.total
    if known != items:
        # Each item of a loop gave a table.
        if shown < known or items < total:
            yield f"{shown:,} rows of the first {items:,} of {total:,} items are shown"
    elif shown < total:
        yield f"{shown:,} of {total:,} rows are shown"


def _table_cuts(texts: list[list[str]], *, columns: int) -> Iterator[str]:
    if columns > COLUMNS_SHOWN_MAX:
        yield f"{COLUMNS_SHOWN_MAX} of {columns} columns are shown"
    if any(len(text) > CELL_CHARACTERS_MAX for row in texts for text in row):
        yield "long values are cut (…)"


def _print_tree(console: Console, result: StepResult) -> list[str]:
    tree = Tree(Text(_title(result), style="bold"))
    growth = _TreeGrowth()
    growth.add(tree, result.error if result.error is not None else result.data, depth=1)
    console.print(tree, soft_wrap=False)
    cuts = ["values that are long, deep or many are cut (…)"] if growth.is_cut else []
    total = len(rows_in(result.data) or ())
    if result.total is not None and total < result.total:
        cuts.insert(0, f"{total:,} of {result.total:,} rows are shown")
    return cuts


class _TreeGrowth:
    """Adds fields to a tree until it is as large as may be shown."""

    def __init__(self) -> None:
        self._nodes = 0
        self.is_cut = False

    def add(self, tree: Tree, value: Any, *, depth: int) -> None:
        """Add a value below a node."""
        for name, item in _children(value):
            if self._nodes >= NODES_SHOWN_MAX:
                self.is_cut = True
                tree.add(Text("…"))
                return
            self._nodes += 1
            has_children = isinstance(item, dict | list) and len(item) > 0
            if has_children and depth < DEPTH_SHOWN_MAX:
                self.add(tree.add(Text(_cut(name))), item, depth=depth + 1)
                continue
            text = _cell(item)
            self.is_cut = self.is_cut or len(text) > CELL_CHARACTERS_MAX
            tree.add(Text(f"{_cut(name)}: {_cut(text)}" if name else _cut(text)))


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case Mapping():
            yield from ((str(name), item) for name, item in value.items())
        case list():
            yield from ((str(number), item) for number, item in enumerate(value))
        case _:
            yield "", value


def _title(result: StepResult) -> str:
    state = "error" if result.error is not None else "result"
    return render.one_line(f"{state} of step {result.step!r}")


def _cell(value: Any) -> str:
    """Write a value on one line: text as it is, everything else as JSON, no digit lost."""
    text = value if isinstance(value, str) else codec.encode(value).decode()
    return render.safe(" ".join(text.split()) if isinstance(value, str) else text)


def _cut(text: str) -> str:
    return text if len(text) <= CELL_CHARACTERS_MAX else text[: CELL_CHARACTERS_MAX - 1] + "…"
