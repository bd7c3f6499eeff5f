"""Scalars of the fields whose type the model declares, by the field's name where units matter."""

from typing import Any

from msgspec import inspect

from noetl_playbook import coercion

_DURATION_FIELDS = frozenset(
    {
        *("timeout", "timeout_s", "deadline_s", "delay", "max_delay", "ttl", "per"),
        *("max_seconds", "lease_seconds", "heartbeat_seconds", "statement_timeout_s"),
    }
)
_SIZE_FIELDS = frozenset(["inline_max_bytes", "preview_max_bytes", "max_bytes", "chunk_bytes"])


def scalar(info: inspect.Type, value: Any, name: str) -> tuple[Any, str]:
    """Coerce a scalar; also say what was expected."""
    match info:
        case inspect.BoolType():
            return coercion.boolean(value), "true or false"
        case inspect.IntType() | inspect.FloatType():
            return _quantity(value, name, is_whole=isinstance(info, inspect.IntType))
        case inspect.LiteralType(values=values):
            names = ", ".join(str(each) for each in values)
            return (value if value in values else None), f"one of {names}"
        case _:
            return _text(value), "text"


def _quantity(value: Any, name: str, *, is_whole: bool) -> tuple[Any, str]:
    if name in _DURATION_FIELDS:
        return coercion.duration_s(value), "a duration (seconds, or 500ms, 30s, 5m, 2h, 1d)"
    if name in _SIZE_FIELDS:
        return coercion.size_bytes(value), "a size (bytes, or 64KiB, 1MB)"
    if is_whole:
        return coercion.integer(value), "a whole number"
    return coercion.number(value), "a number"


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else None
