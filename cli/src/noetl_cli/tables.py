"""Rows in columns, for people and for `awk`."""

from collections.abc import Sequence

from noetl_cli import render


def show(head: Sequence[str], rows: Sequence[Sequence[str]], *, nothing: str) -> None:
    """Print rows under their heads; say on the other channel when there are none."""
    if not rows:
        render.note(nothing)
        return
    cells = [tuple(head), *(tuple(render.one_line(cell) for cell in row) for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        render.line("  ".join(padded).rstrip())
