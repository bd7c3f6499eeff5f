"""Scalars of the fields whose type the model declares, by the field's name where units matter."""

import math
import re
from typing import Any

from msgspec import inspect

from noetl_playbook.model import coercion
from noetl_playbook.source import yaml_document
from noetl_playbook.source.problems import Path
from noetl_playbook.source.yaml_document import YamlDocument

DURATION_EXPECTED = "a duration (seconds, or 500ms, 30s, 5m, 2h, 1d)"

_DURATION_FIELDS = frozenset(
    {
        *("timeout", "timeout_s", "deadline", "deadline_s", "delay", "max_delay", "ttl", "per"),
        "lag",
        *("max_seconds", "lease_seconds", "heartbeat_seconds", "statement_timeout_s"),
    }
)
_SIZE_FIELDS = frozenset(["inline_max_bytes", "preview_max_bytes", "max_bytes", "chunk_bytes"])
# Other numbers are bounded, and clamped, where their section is read.
_NEVER_NEGATIVE = frozenset(
    {
        *("timeout", "timeout_s", "deadline", "deadline_s", "ttl", "lag"),
        *("inline_max_bytes", "preview_max_bytes"),
    }
)
_UNQUOTED = re.compile(r"[^\s,\[\]{}#'\"]+")


def coerce_scalar(info: inspect.Type, value: Any, name: str) -> tuple[Any, str]:
    """Coerce a scalar; also say what was expected."""
    match info:
        case inspect.BoolType():
            return coercion.coerce_boolean(value), "true or false"
        case inspect.IntType() | inspect.FloatType():
            return _coerce_quantity(value, name, is_whole=isinstance(info, inspect.IntType))
        case inspect.LiteralType(values=values):
            names = ", ".join(str(item) for item in values)
            return (value if value in values else None), f"one of {names}"
        case _:
            return _coerce_text(value), "text"


def _coerce_quantity(value: Any, name: str, *, is_whole: bool) -> tuple[Any, str]:
    if name in _DURATION_FIELDS:
        quantity, expected = coercion.coerce_duration_s(value), DURATION_EXPECTED
    elif name in _SIZE_FIELDS:
        quantity, expected = coercion.coerce_size_bytes(value), "a size (bytes, or 64KiB, 1MB)"
    elif is_whole:
        return coercion.coerce_integer(value), "a whole number"
    else:
        quantity, expected = coercion.coerce_number(value), "a number"
    is_below = name in _NEVER_NEGATIVE and quantity is not None and quantity < 0
    return (None if is_below or is_infinite(quantity) else quantity), expected


def is_infinite(value: Any) -> bool:
    """Tell whether a number is too large for any number."""
    return isinstance(value, float) and math.isinf(value)


def coerce_count_or_share(value: Any) -> int | str | None:
    """Read a whole number, or a percentage as it stands; `None` when the value is neither."""
    if isinstance(value, str) and value.endswith("%"):
        share = coercion.coerce_number(value[:-1])
        return None if share is None or is_infinite(share) else value
    return coercion.coerce_integer(value)


def _coerce_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def read_scalar_text(document: YamlDocument, value: Any, path: Path) -> str | None:
    """Read a scalar as the text that the document has for it: 1.10 stays so; `None` for others."""
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float):
        return None
    text = _find_unquoted_text(document, path)
    if text is not None and yaml_document.resolve_scalar(text) == value:
        return text
    return str(value).lower() if isinstance(value, bool) else str(value)


def _find_unquoted_text(document: YamlDocument, path: Path) -> str | None:
    """Find the text of a scalar without quotes."""
    place = document.values.get(path)
    if place is None or place.line > len(document.lines):
        return None
    match = _UNQUOTED.match(document.lines[place.line - 1], place.column - 1)
    return None if match is None else match[0]
