"""Removes what dead producers left behind, and what a living one's lease no longer covers.

A segment goes when its owner has died, whatever its lease says; when the owner is this process and
the lease has ended; or, where the owner cannot be seen because another table of processes numbers
it, when the lease and its grace have ended. What a living process made is left to that process.
"""

import os
from collections import Counter
from pathlib import Path

from msgspec import Struct

from noetl_storage.tiers import owners, room, segments
from noetl_storage.tiers.owners import Owner
from noetl_storage.tiers.segments import HEADER_BYTES, TRAILER_BYTES, Trailer

DEAD, EXPIRED, TORN = "dead", "expired", "torn"


class Moment(Struct, frozen=True, kw_only=True):
    """When a sweep looks; a torn segment is left alone until it is so old."""

    monotonic_s: float
    now_s: float
    torn_age_s: float


class Sweeper:
    """Looks at the segments of a node; of one that has not changed it knows the trailer."""

    def __init__(self, root: Path, *, me: Owner) -> None:
        self._root = root
        self._me = me
        self._known: dict[str, tuple[int, int, Trailer | None]] = {}

    def sweep(self, moment: Moment) -> tuple[Counter[str], int]:
        """Look at every segment; return how many went, by reason, and the bytes of the others."""
        gone: Counter[str] = Counter()
        seen: dict[str, tuple[int, int, Trailer | None]] = {}
        living: dict[Owner, bool | None] = {}
        size_by_inode: dict[int, int] = {}
        for entry in room.entries(self._root):
            try:
                found = entry.stat(follow_symlinks=False)
                trailer = self._trailer(entry, found)
                is_old = moment.now_s - found.st_mtime > moment.torn_age_s
                reason = self._reason(entry.name, trailer, moment, living, is_old=is_old)
                if reason is None:
                    seen[entry.path] = found.st_ino, found.st_mtime_ns, trailer
                    size_by_inode[found.st_ino] = segments.taken(found.st_size)
                    continue
                Path(entry.path).unlink()
                gone[reason] += 1
            except OSError:
                # Somebody else removed it; what cannot be removed is tried again next time.
                continue
        self._known = seen
        return gone, sum(size_by_inode.values())

    def _trailer(self, entry: os.DirEntry[str], found: os.stat_result) -> Trailer | None:
        inode, changed, trailer = self._known.get(entry.path, (0, 0, None))
        if (inode, changed) == (found.st_ino, found.st_mtime_ns):
            return trailer
        return None if entry.name.endswith(room.PART) else read_trailer(Path(entry.path))

    def _reason(
        self,
        name: str,
        trailer: Trailer | None,
        moment: Moment,
        living: dict[Owner, bool | None],
        *,
        is_old: bool,
    ) -> str | None:
        owner = room.part_owner(name) if trailer is None else trailer.owner
        if owner is None:
            return TORN if is_old else None
        is_expired = trailer is not None and trailer.valid_until_s <= moment.monotonic_s
        if owner == self._me:
            return EXPIRED if is_expired else None
        if owner not in living:
            living[owner] = owners.is_alive(owner)
        if living[owner] is None:
            return EXPIRED if is_expired or (trailer is None and is_old) else None
        return None if living[owner] else DEAD


def read_trailer(file: Path) -> Trailer | None:
    """Read who made a segment, or None when it is not whole; raises `OSError`."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        length = segments.read_length(os.pread(descriptor, HEADER_BYTES, 0))
        if length is None or size != HEADER_BYTES + length + TRAILER_BYTES:
            return None
        return segments.read_trailer(os.pread(descriptor, TRAILER_BYTES, HEADER_BYTES + length))
    finally:
        os.close(descriptor)
