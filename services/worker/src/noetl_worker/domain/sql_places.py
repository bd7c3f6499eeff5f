"""Where in a statement a database found a fault."""

from typing import Any

# A text that is cut may end inside a secret, which no mask finds: what is longer is left out.
_STATEMENT_CHARACTERS_MAX = 2_000
_LINE_CHARACTERS_MAX = 300


def describe_place(statement: str, position: int | None) -> dict[str, Any]:
    """Return the statement's text, and the line and column of a character that counts from 1.

    A text or line that is too long is left out.
    """
    place: dict[str, Any] = {}
    if 0 < len(statement) <= _STATEMENT_CHARACTERS_MAX:
        place["statement_text"] = statement.strip()
    if position is None or not 0 < position <= len(statement):
        return place
    before = statement[: position - 1]
    place["line"] = before.count("\n") + 1
    place["column"] = len(before) - (before.rfind("\n") + 1) + 1
    line_text = statement.splitlines()[place["line"] - 1].strip()
    if len(line_text) <= _LINE_CHARACTERS_MAX:
        place["line_text"] = line_text
    return place
