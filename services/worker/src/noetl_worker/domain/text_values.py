"""Values as texts, for targets that cast texts to what they hold."""

from typing import Any

import msgspec

from noetl_contracts import codec


def format_text(value: Any) -> str:
    """Write a value into a header, a query or a text parameter."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return msgspec.json.encode(value).decode()


def format_optional_text(value: Any) -> str | None:
    """Write a value as the text that is cast; lists and mappings become JSON."""
    return None if value is None else format_text(value)


def shorten_text(text: str, characters_max: int) -> str:
    """Cut a text that is too long, which an ellipsis at its end shows."""
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def format_array_literal(values: list[Any]) -> str:
    """Write a list as PostgreSQL's text form of an array."""
    return "{" + ",".join(_format_array_element(value) for value in values) + "}"


def _format_array_element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return format_array_literal(value)
    text = codec.encode_text(value) if isinstance(value, dict) else format_text(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
