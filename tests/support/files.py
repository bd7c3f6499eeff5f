"""Files that this process has open."""

from contextlib import suppress
from pathlib import Path


def nameless_files() -> set[str]:
    """Name the temporary files of this process, which have no name elsewhere."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(link.readlink()))
    return {name for name in found if name.endswith("(deleted)")}
