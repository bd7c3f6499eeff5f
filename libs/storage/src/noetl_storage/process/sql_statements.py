"""Named statements: `sql/<module>.sql` of a package in, a mapping from name to statement out."""

import re
from importlib import resources

_HEADER = re.compile(r"^-- name: ([a-z][a-z0-9_]*) :(?:one|many|exec)\n", re.MULTILINE)


def load_statements(package: str | None, module: str) -> dict[str, str]:
    """Read every statement of one file; a name may appear only once."""
    assert package is not None, "statements lie beside modules of a package"
    text = (resources.files(package) / "sql" / f"{module}.sql").read_text("utf-8")
    _, *parts = _HEADER.split(text)
    names, statements = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{module}.sql names a statement twice: {names}")
    return dict(zip(names, (statement.strip() for statement in statements), strict=True))
