"""Where a template stands in the text: block scalars and folded lines included."""

import re

from noetl_playbook.document import Document
from noetl_playbook.problems import Path, Place

_OPENER = re.compile(r"\{\{|\{%")


def openers(source: str) -> list[int]:
    """List where each `{{` or `{%` of a template begins."""
    return [found.start() for found in _OPENER.finditer(source)]


def spans(source: str) -> list[tuple[int, int]]:
    """List where each template of a text begins, and where the next one does."""
    starts = openers(source)
    return list(zip(starts, [*starts[1:], len(source)], strict=False))


def of_template(document: Document, path: Path, source: str, offset: int) -> Place:
    """Place the template that opens at an offset of a value's text.

    A value on one line is the place itself; in longer ones the openers are counted, for folding
    and quoting change lines and columns but never their order.
    """
    place = document.place(path)
    if not place.line_end or path not in document.values:
        return place
    remaining = sum(1 for each in openers(source) if each < offset)
    first = place.line + 1 if place.is_block else place.line
    for line in range(first, min(place.line_end, len(document.lines)) + 1):
        written = document.lines[line - 1]
        start = place.column - 1 if line == place.line else 0
        for found in _OPENER.finditer(written, start):
            if remaining == 0:
                return Place(line=line, column=found.start() + 1)
            remaining -= 1
    return _first_content(document, place)


def _first_content(document: Document, place: Place) -> Place:
    """Place a bare condition inside a block: where its text begins."""
    for line in range(place.line + 1, min(place.line_end, len(document.lines)) + 1):
        written = document.lines[line - 1]
        if place.is_block and written.strip():
            return Place(line=line, column=len(written) - len(written.lstrip()) + 1)
    return place
