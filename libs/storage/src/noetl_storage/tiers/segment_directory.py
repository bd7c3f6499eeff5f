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
from noetl_storage.tiers import segment_format
from noetl_storage.tiers.segment_format import SegmentOwner

PART = ".part"
BUDGET = "budget"
SWEPT = "swept"
_STORE_DIGITS = 12
_PRIVATE = 0o700


class SegmentDirectoryRefused(Permanent):
    """The directory for shared segments cannot be used: name another one, or turn the tier off."""


def open_segment_directory(directory: Path, *, store_url: str) -> Path:
    """Make and return the directory of a store's segments; raises `SegmentDirectoryRefused`."""
    root = directory / f"noetl-{os.geteuid()}"
    room = root / codec.digest_hex(store_url.encode())[:_STORE_DIGITS]
    try:
        root.mkdir(mode=_PRIVATE, exist_ok=True)
        _check_private(root)
        room.mkdir(mode=_PRIVATE, exist_ok=True)
    except OSError as failure:
        raise SegmentDirectoryRefused(f"{root}: {failure.strerror or failure}") from failure
    return room


def _check_private(root: Path) -> None:
    """Anyone may make directories in shared memory: take none that another user prepared."""
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise SegmentDirectoryRefused(f"{root} is not a directory of this user")
    if status.st_mode & 0o077:
        raise SegmentDirectoryRefused(f"{root} is open to other users: give it mode 0700")


def build_part_name(owner: SegmentOwner, number: int) -> str:
    """Name a segment that is being written; its name says who writes it."""
    return f"{owner}.{number}{PART}"


def parse_part_owner(name: str) -> SegmentOwner | None:
    """Return who writes a part, or None when the name is not one."""
    return segment_format.parse_owner(name.removesuffix(PART).rpartition(".")[0])


def iterate_segments(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield every segment and every part of every store on this node."""
    for store in _list_entries(root):
        if store.is_dir(follow_symlinks=False):
            yield from _list_entries(store.path)


def remove_empty_stores(root: Path, *, but: Path) -> None:
    """Remove the directories of stores in which nothing is left; a writer makes its own again."""
    for store in _list_entries(root):
        if store.is_dir(follow_symlinks=False) and Path(store.path) != but:
            with suppress(OSError):
                Path(store.path).rmdir()


def is_sweep_due(root: Path, *, now_s: float, interval_s: float) -> bool:
    """Tell whether no process of this node has swept for so long, and say that this one does."""
    mark = root / SWEPT
    with suppress(OSError):
        if 0 <= now_s - mark.stat().st_mtime < interval_s:
            return False
    with suppress(OSError):
        mark.touch(mode=0o600)
        os.utime(mark, (now_s, now_s))
    return True


def _list_entries(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
