"""Writes values as short YAML, to show what to write instead of an older form."""

import re
from typing import Any

import msgspec

CHARACTERS_MAX = 8_000

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*\Z")
_TAKEN = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def fragment(key: str, value: Any) -> str:
    """Write `key: value` in flow style; what is too long to show is cut to its key."""
    text = f"{_text(key)}: {flow(value)}"
    return text if len(text) <= CHARACTERS_MAX else f"{_text(key)}: …"


def flow(value: Any) -> str:
    """Write a value of JSON types as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return _text(value) if isinstance(value, str) else json_scalar(value)


def json_scalar(value: Any) -> str:
    """Write a scalar as JSON; a whole number of any size is written whole."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return msgspec.json.encode(value).decode()


def _text(text: str) -> str:
    if _PLAIN.match(text) and text.lower() not in _TAKEN:
        return text
    return json_scalar(text)


def nested(path: tuple[str, ...], value: Any) -> Any:
    """Put a value under keys, outermost first."""
    for key in reversed(path):
        value = {key: value}
    return value
