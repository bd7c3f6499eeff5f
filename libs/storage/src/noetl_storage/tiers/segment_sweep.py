"""Removes what dead producers left behind, and what a living one's lease no longer covers.

A segment is removed when its owner has died, also before its lease ends; when the owner is this
process and the lease has ended; or, where the owner cannot be looked up because it has another
table of processes, when the lease and its grace have ended. A living process removes its own
segments.
"""

import os
from collections import Counter
from pathlib import Path

from msgspec import Struct

from noetl_storage.tiers import segment_directory, segment_format
from noetl_storage.tiers.segment_format import (
    HEADER_BYTES,
    TRAILER_BYTES,
    SegmentOwner,
    SegmentTrailer,
)

DEAD, EXPIRED, TORN = "dead", "expired", "torn"


class SweepMoment(Struct, frozen=True, kw_only=True):
    """When a sweep looks; a torn segment is left alone until it is so old."""

    monotonic_s: float
    now_s: float
    torn_age_s: float


class SegmentSweeper:
    """Looks at the segments of a node; of one that has not changed it knows the trailer."""

    def __init__(self, root: Path, *, me: SegmentOwner) -> None:
        self._root = root
        self._me = me
        self._stat_by_path: dict[str, tuple[int, int, SegmentTrailer | None]] = {}

    def sweep_segments(self, moment: SweepMoment) -> tuple[Counter[str], int]:
        """Look at every segment; return how many went, by reason, and the bytes of the others."""
        counter: Counter[str] = Counter()
        stat_by_path: dict[str, tuple[int, int, SegmentTrailer | None]] = {}
        living: dict[SegmentOwner, bool | None] = {}
        size_by_inode: dict[int, int] = {}
        for entry in segment_directory.iterate_segments(self._root):
            try:
                file_stat = entry.stat(follow_symlinks=False)
                trailer = self._find_trailer(entry, file_stat)
                is_old = moment.now_s - file_stat.st_mtime > moment.torn_age_s
                reason = self._find_reason(entry.name, trailer, moment, living, is_old=is_old)
                if reason is None:
                    stat_by_path[entry.path] = file_stat.st_ino, file_stat.st_mtime_ns, trailer
                    size_by_inode[file_stat.st_ino] = segment_format.count_taken_bytes(
                        file_stat.st_size
                    )
                    continue
                Path(entry.path).unlink()
                counter[reason] += 1
            except OSError:
                # Somebody else removed it; what cannot be removed is tried again next time.
                continue
        self._stat_by_path = stat_by_path
        return counter, sum(size_by_inode.values())

    def _find_trailer(
        self, entry: os.DirEntry[str], file_stat: os.stat_result
    ) -> SegmentTrailer | None:
        inode, changed_ns, trailer = self._stat_by_path.get(entry.path, (0, 0, None))
        if (inode, changed_ns) == (file_stat.st_ino, file_stat.st_mtime_ns):
            return trailer
        return (
            None
            if entry.name.endswith(segment_directory.PART)
            else read_segment_trailer(Path(entry.path))
        )

    def _find_reason(
        self,
        name: str,
        trailer: SegmentTrailer | None,
        moment: SweepMoment,
        living: dict[SegmentOwner, bool | None],
        *,
        is_old: bool,
    ) -> str | None:
        owner = segment_directory.parse_part_owner(name) if trailer is None else trailer.owner
        if owner is None:
            return TORN if is_old else None
        is_expired = trailer is not None and trailer.valid_until_s <= moment.monotonic_s
        if owner == self._me:
            return EXPIRED if is_expired else None
        if owner not in living:
            living[owner] = segment_format.is_alive(owner)
        if living[owner] is None:
            return EXPIRED if is_expired or (trailer is None and is_old) else None
        return None if living[owner] else DEAD


def read_segment_trailer(file: Path) -> SegmentTrailer | None:
    """Read who made a segment, or None when it is not whole; raises `OSError`."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        length = segment_format.unpack_length(os.pread(descriptor, HEADER_BYTES, 0))
        if length is None or size != HEADER_BYTES + length + TRAILER_BYTES:
            return None
        return segment_format.unpack_trailer(
            os.pread(descriptor, TRAILER_BYTES, HEADER_BYTES + length)
        )
    finally:
        os.close(descriptor)
