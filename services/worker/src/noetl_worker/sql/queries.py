"""Named statements: `sql/<module>.sql` of a package in, a mapping from name to statement out."""

import re
from importlib import resources

_HEADER = re.compile(r"^-- name: ([a-z][a-z0-9_]*) :(?:one|many|exec)\n", re.MULTILINE)


def load_queries(package: str | None, module: str) -> dict[str, str]:
    """Read every statement of one file."""
    assert package is not None, "statements lie beside modules of a package"
    text = (resources.files(package) / "sql" / f"{module}.sql").read_text("utf-8")
    _, *parts = _HEADER.split(text)
    return dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))
