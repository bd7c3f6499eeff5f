"""Spark SQL, cut into statements."""

from functools import lru_cache

from noetl_worker.domain.sql_cuts import cut
from noetl_worker.domain.sql_tokens import read_tokens

_TEMPORARY = frozenset({"temp", "temporary"})


@lru_cache(maxsize=64)
def statements(text: str) -> tuple[str, ...]:
    """Return the statements of a text; raises `ToolFailure` where it cannot be cut."""
    return tuple(text[start:end].strip() for start, end, _ in cut(text, "spark"))


def view(statement: str) -> tuple[str, str] | None:
    """Return the name and the query of a temporary view, None for another statement.

    Views are made of their queries: Spark's own statement takes no parameters.
    """
    tokens = read_tokens(statement, "spark")
    words = [token.word for token in tokens]
    at = 3 if words[1:3] == ["or", "replace"] else 1
    if words[:1] != ["create"] or words[at + 1 : at + 2] != ["view"] or words[at] not in _TEMPORARY:
        return None
    match tokens[at + 2 : at + 4]:
        case [name, keyword] if keyword.word == "as":
            quoted = name.raw[1:-1].replace("``", "`") if name.raw.startswith("`") else ""
            known = quoted or (name.word and name.raw)
            return (known, statement[keyword.end :]) if known else None
    return None
