"""Values as SQL text that cannot be read as anything else."""

import math
from typing import Any

from noetl_playbook import forms


def sql_literal(value: Any) -> str:
    """Write any scalar, or JSON, as one literal."""
    simple = forms.plain(value)
    if simple is None:
        return "NULL"
    if isinstance(simple, bool):
        return "true" if simple else "false"
    if isinstance(simple, int | float):
        return _number(simple)
    return _quoted(simple if isinstance(simple, str) else forms.json_text(simple), "'")


def sql_ident(value: Any) -> str:
    """Write text as one quoted identifier, or a list as a dotted one."""
    simple = forms.plain(value)
    parts = simple if isinstance(simple, list) else [simple]
    for part in parts:
        if not isinstance(part, str) or not part:
            raise ValueError("an identifier is text that is not empty")
    return ".".join(_quoted(part, '"') for part in parts)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return f"'{value}'"
    # A bare minus could join a preceding one into a comment.
    return f"({value})" if value < 0 else str(value)


def _quoted(text: str, quote: str) -> str:
    if "\x00" in text:
        raise ValueError("SQL text cannot hold NUL")
    return quote + text.replace(quote, quote * 2) + quote
