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
