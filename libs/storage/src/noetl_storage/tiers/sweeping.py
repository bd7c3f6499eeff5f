"""Removes what dead producers left behind, and what a living one's lease no longer covers.

A segment goes when its owner has died, whatever its lease says; when the owner is this process and
the lease has ended; or, where the owner cannot be seen because another table of processes numbers
it, when the lease and its grace have ended. What a living process made is left to that process.
"""

import os
from collections import Counter
from pathlib import Path

from noetl_storage.tiers import owners, room, segments
from noetl_storage.tiers.owners import Owner
from noetl_storage.tiers.segments import HEADER_BYTES, TRAILER_BYTES, Trailer

DEAD, EXPIRED, TORN = "dead", "expired", "torn"


def sweep(
    root: Path, *, me: Owner, monotonic_s: float, now_s: float, torn_age_s: float
) -> Counter[str]:
    """Look at every segment of the node; return how many went, by reason."""
    gone: Counter[str] = Counter()
    for file in room.files(root):
        try:
            reason = _reason(
                file, me=me, monotonic_s=monotonic_s, now_s=now_s, torn_age_s=torn_age_s
            )
            if reason is not None:
                file.unlink()
                gone[reason] += 1
        except OSError:
            # Somebody else removed it; what cannot be removed is tried again next time.
            continue
    return gone


def _reason(
    file: Path, *, me: Owner, monotonic_s: float, now_s: float, torn_age_s: float
) -> str | None:
    is_old = now_s - file.stat().st_mtime > torn_age_s
    if file.name.endswith(room.PART):
        owner = room.part_owner(file.name)
        is_alive = None if owner is None else owners.is_alive(owner)
        if is_alive is None:
            return TORN if is_old else None
        return None if is_alive else DEAD
    found = read_trailer(file)
    if found is None:
        return TORN if is_old else None
    is_expired = found.valid_until_s <= monotonic_s
    if found.owner == me:
        return EXPIRED if is_expired else None
    is_alive = owners.is_alive(found.owner)
    if is_alive is None:
        return EXPIRED if is_expired else None
    return None if is_alive else DEAD


def read_trailer(file: Path) -> Trailer | None:
    """Read who made a segment, or None when it is not whole."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        length = segments.read_length(os.pread(descriptor, HEADER_BYTES, 0))
        if length is None or size != HEADER_BYTES + length + TRAILER_BYTES:
            return None
        return segments.read_trailer(os.pread(descriptor, TRAILER_BYTES, HEADER_BYTES + length))
    finally:
        os.close(descriptor)
