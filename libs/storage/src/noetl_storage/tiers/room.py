"""The place of a node's segments: a directory of ours alone in the machine's shared memory.

`<directory>/noetl-<user>/<store>/<segment>`: stores have digests of their addresses as names, so
that deployments on one machine share a budget and nothing else.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_storage.tiers import owners
from noetl_storage.tiers.owners import Owner

PART = ".part"
BUDGET = "budget"
_STORE_DIGITS = 12
_PRIVATE = 0o700


class RoomRefused(Permanent):
    """The directory for shared segments cannot be used: name another one, or turn the tier off."""


def open_room(directory: Path, *, store_url: str) -> Path:
    """Make and return the directory of a store's segments; raises `RoomRefused`."""
    root = directory / f"noetl-{os.geteuid()}"
    room = root / codec.digest(store_url.encode())[:_STORE_DIGITS]
    try:
        root.mkdir(mode=_PRIVATE, exist_ok=True)
        _check_private(root)
        room.mkdir(mode=_PRIVATE, exist_ok=True)
    except OSError as failure:
        raise RoomRefused(f"{root}: {failure.strerror or failure}") from failure
    return room


def _check_private(root: Path) -> None:
    """Anyone may make directories in shared memory: take none that another user prepared."""
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise RoomRefused(f"{root} is not a directory of this user")
    if found.st_mode & 0o077:
        raise RoomRefused(f"{root} is open to other users: give it mode 0700")


def part_name(owner: Owner, number: int) -> str:
    """Name a segment that is being written; its name says who writes it."""
    return f"{owner}.{number}{PART}"


def part_owner(name: str) -> Owner | None:
    """Return who writes a part, or None when the name is not one."""
    return owners.parse(name.removesuffix(PART).rpartition(".")[0])


def files(root: Path) -> Iterator[Path]:
    """Yield every segment and every part of every store on this node."""
    for room in _entries(root):
        if room.is_dir():
            yield from _entries(room)


def measured(root: Path) -> int:
    """Add up what all segments take; a part that was just linked counts once."""
    size_by_inode: dict[int, int] = {}
    for file in files(root):
        try:
            found = file.stat()
        except FileNotFoundError:
            continue
        size_by_inode[found.st_ino] = found.st_size
    return sum(size_by_inode.values())


def leave_empty(root: Path, *, but: Path) -> None:
    """Remove the directories of stores in which nothing is left; a writer makes its own again."""
    for room in _entries(root):
        if room.is_dir() and room != but:
            with suppress(OSError):
                room.rmdir()


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
