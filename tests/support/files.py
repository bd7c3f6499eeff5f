"""Files of processes that run: those that this one has open, and folders that others change."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def walk_folder(folder: Path) -> Iterator[Path]:
    """Yield the folders and files below a folder, without those that go meanwhile.

    `Path.glob` raises `FileNotFoundError` when a folder is removed before it is visited.
    """
    for at, folders, files in os.walk(folder):
        yield from (Path(at, name) for name in (*folders, *files))


def read_files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield each file below a folder with its bytes, without those that go meanwhile."""
    for path in walk_folder(folder):
        with suppress(FileNotFoundError):
            if path.is_file():
                yield path, path.read_bytes()


def nameless_files() -> set[str]:
    """Name the temporary files of this process, which have no name elsewhere."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(link.readlink()))
    return {name for name in found if name.endswith("(deleted)")}
