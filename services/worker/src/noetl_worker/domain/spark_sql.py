"""Spark SQL, cut into statements."""

import re

_TOKEN = re.compile(
    r"""
      --[^\n]*
    | /\*.*?\*/
    | '(?:[^'\\]|\\.)*'
    | "(?:[^"\\]|\\.)*"
    | `(?:[^`]|``)*`
    | (?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)


def statements(text: str) -> tuple[str, ...]:
    """Return the statements of a text; semicolons in quotes and comments do not end one."""
    found: list[str] = []
    start = 0
    for token in _TOKEN.finditer(text):
        if token["end"]:
            found.append(text[start : token.start()])
            start = token.end()
    found.append(text[start:])
    return tuple(one.strip() for one in found if _TOKEN.sub(_visible, one).strip())


def _visible(token: re.Match[str]) -> str:
    return "" if token[0].startswith(("--", "/*")) else token[0]


_VIEW = re.compile(
    r"""
    (?:--[^\n]*\n | /\*.*?\*/ | \s)*
    create \s+ (?:or \s+ replace \s+)? temp(?:orary)? \s+ view \s+
    (?: (?P<name>[A-Za-z_]\w*) | `(?P<quoted>(?:[^`]|``)+)` )
    \s+ as \b (?P<query>.*)
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def view(statement: str) -> tuple[str, str] | None:
    """Return the name and the query of a temporary view, None for another statement.

    Views are made of their queries: Spark's own statement takes no parameters.
    """
    found = _VIEW.fullmatch(statement)
    if found is None:
        return None
    return found["name"] or found["quoted"].replace("``", "`"), found["query"]
