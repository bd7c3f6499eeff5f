"""Sealed texts inside values: found and opened on the way into a tool, made on the way out."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from noetl_worker.domain.masking import mapped

PREFIX = "sealed:v1:"
SEALED = re.compile(r"sealed:v1:[0-9a-f]{8}:[A-Za-z0-9_-]+")

_ATOMS = frozenset({int, float, bool, type(None)})


def is_inside(value: Any) -> bool:
    """Tell whether a value holds a sealed text."""
    kind = type(value)
    if kind is str:
        return PREFIX in value
    if kind in _ATOMS:
        return False
    if kind is dict:
        return _is_inside_any(value.values())
    if kind is list:
        return _is_inside_any(value)
    return False


def _is_inside_any(values: Iterable[Any]) -> bool:
    for value in values:  # noqa: SIM110 - every field of every call comes here
        if PREFIX in value if type(value) is str else is_inside(value):
            return True
    return False


def opened(value: Any, open_text: Callable[[str], str]) -> Any:
    """Replace every sealed text; a value without any comes back as it is."""
    if not is_inside(value):
        return value
    return mapped(value, lambda text: SEALED.sub(lambda found: open_text(found[0]), text))
