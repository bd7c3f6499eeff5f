"""Named statements: `sql/<module>.sql` in, a mapping from name to statement out."""

import re
from importlib import resources

_HEADER = re.compile(r"^-- name: ([a-z][a-z0-9_]*) :(?:one|many|exec)\n", re.MULTILINE)


def load(module: str) -> dict[str, str]:
    """Read every statement of one file."""
    text = (resources.files(__package__) / "sql" / f"{module}.sql").read_text("utf-8")
    _, *parts = _HEADER.split(text)
    return dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))
