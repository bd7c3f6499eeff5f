"""The payloads that plain values refer to, wherever in them the references stand."""

from collections.abc import Iterator
from typing import Any

Found = dict[str, dict[str, Any]]


def collect_references(value: Any) -> Found:
    """Return the references in a value by their digests; the first of each digest is kept."""
    references: Found = {}
    for reference in _iterate_references(value):
        references.setdefault(reference["sha256"], reference)
    return references


def _iterate_references(value: Any) -> Iterator[dict[str, Any]]:
    # A stack and not recursion: what steps return may be nested as deep as JSON goes.
    pending_values = [value]
    while pending_values:
        current = pending_values.pop()
        if isinstance(current, dict):
            if isinstance(current.get("sha256"), str) and isinstance(current.get("uri"), str):
                yield current
            pending_values.extend(current.values())
        elif isinstance(current, list):
            pending_values.extend(current)
