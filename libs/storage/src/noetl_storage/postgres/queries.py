"""Named queries: `sql/<table>.sql` in, a mapping from name to statement out."""

import re
from importlib import resources

_HEADER = re.compile(r"^-- name: ([a-z][a-z0-9_]*) :(?:one|many|exec)\n", re.MULTILINE)


def load_queries(table: str) -> dict[str, str]:
    """Read every query of one table's file; a name may appear only once."""
    text = (resources.files(__package__) / "sql" / f"{table}.sql").read_text("utf-8")
    _, *parts = _HEADER.split(text)
    names, statements = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{table}.sql names a query twice: {names}")
    return dict(zip(names, (statement.strip() for statement in statements), strict=True))
