"""Loads the named statements of this package's .sql files."""

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+) :(?:one|many|exec)$", re.MULTILINE)


@cache
def load_statements(stem: str) -> dict[str, str]:
    """Return the statements of `sql/<stem>.sql` by name."""
    return parse_statements((files("noetl_pft") / "sql" / f"{stem}.sql").read_text())


def parse_statements(text: str) -> dict[str, str]:
    """Return the statements of a text by name."""
    parts = _NAME.split(text)
    bodies = (body.strip().rstrip(";") for body in parts[2::2])
    return dict(zip(parts[1::2], bodies, strict=True))
