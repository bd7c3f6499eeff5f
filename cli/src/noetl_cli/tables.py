"""Rows in columns, for people and for `awk`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from noetl_cli import render
from noetl_storage.deferred import Deferred

if TYPE_CHECKING:
    from rich import table as rich_table
    from rich import text as rich_text
else:
    # In a pipe nothing of it is needed, and it takes longer to load than most verbs.
    rich_table = Deferred("rich.table")
    rich_text = Deferred("rich.text")

_GAP = 2


def show(head: Sequence[str], rows: Sequence[Sequence[str]], *, nothing: str) -> None:
    """Print rows under their heads; say on the other channel when there are none.

    A terminal gets them within its width, a pipe whole lines of whatever length.
    """
    if not rows:
        render.note(nothing)
        return
    cells = [tuple(render.one_line(cell) for cell in row) for row in rows]
    if render.is_terminal():
        _print_table(head, cells)
    else:
        _write_lines([tuple(head), *cells])


def _write_lines(cells: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        render.line((" " * _GAP).join(padded).rstrip())


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Fold long cells in their columns; the first column, which names the row, stays whole."""
    table = rich_table.Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for place, name in enumerate(head):
        table.add_column(name, no_wrap=place == 0, overflow="fold")
    for row in rows:
        # As it stands: data is no markup.
        table.add_row(*(rich_text.Text(cell) for cell in row))
    render.console().print(table, soft_wrap=False)
