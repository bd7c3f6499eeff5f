"""Segments in the machine's shared memory: any process of this node and user may map them.

They are plain files of a memory file system, opened by path: the interpreter's own shared memory
registers segments with a tracker that removes them when the process ends which merely read them.
"""

import asyncio
import mmap
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.payloads import PayloadRef
from noetl_storage.ports.payload_ports import TierClock, TierName
from noetl_storage.process.lazy_import import LazyModule
from noetl_storage.tiers import segment_directory, segment_format, segment_sweep
from noetl_storage.tiers.budget import SegmentBudget
from noetl_storage.tiers.segment_directory import SegmentDirectoryRefused
from noetl_storage.tiers.segment_format import (
    HEADER_BYTES,
    LEASE_BYTES,
    TRAILER_BYTES,
    SegmentOwner,
    SegmentTrailer,
)
from noetl_storage.tiers.segment_sweep import SegmentSweeper, SweepMoment

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow")

GRACE_S = 30.0
# Copying less than this is done sooner than a thread is woken.
_AT_ONCE_BYTES = 256 * 1024


class _OpenSegment(Struct, frozen=True, kw_only=True):
    descriptor: int
    length: int
    valid_until_s: float


class SharedTier:
    """One process's view of its node's segments; every doubt is a miss."""

    name = TierName.SHARED

    def __init__(
        self,
        place: Path,
        *,
        bytes_max: int,
        lease_s: float,
        clock: TierClock,
        grace_s: float = GRACE_S,
    ) -> None:
        me = segment_format.find_this_process()
        if me is None:
            raise SegmentDirectoryRefused("this system does not tell processes apart (no /proc)")
        self._me: SegmentOwner = me
        self._place = place
        self._valid_s = lease_s + grace_s
        self._clock = clock
        self._budget = SegmentBudget(place.parent / segment_directory.BUDGET, bytes_max=bytes_max)
        self._sweeper = SegmentSweeper(place.parent, me=me)
        self._number = 0
        # Until when this process's own segments are valid; a reader may have said later.
        self._until_by_name: dict[str, float] = {}

    async def find_copy(self, ref: PayloadRef) -> bytes | None:
        """Return content whose digest was checked, or None on any doubt."""
        segment = self._open_segment(ref)
        if segment is None:
            return None
        is_short = segment.length <= _AT_ONCE_BYTES
        data = (
            _read_segment(segment, ref)
            if is_short
            else await asyncio.to_thread(_read_segment, segment, ref)
        )
        if data is None:
            # A damaged segment must not be read: the next reader that needs it makes a new one.
            self._remove_segment(segment_format.build_segment_name(ref))
        return data

    def map_bytes(self, ref: PayloadRef) -> Any:
        """Map content without copying it, as an Arrow buffer; None on any doubt.

        The mapping lasts as long as the buffer, also when the segment is removed meanwhile. Its
        digest is not computed: header, length and trailer must fit.
        """
        segment = self._open_segment(ref)
        if segment is None:
            return None
        try:
            mapping = mmap.mmap(
                segment.descriptor, HEADER_BYTES + segment.length, prot=mmap.PROT_READ
            )
        except (OSError, ValueError):
            return None
        finally:
            os.close(segment.descriptor)
        return pa.py_buffer(mapping).slice(HEADER_BYTES, segment.length)

    async def keep_copy(self, ref: PayloadRef, data: bytes) -> bool:
        """Copy stored content into a segment; False when there is no room or the place fails."""
        if len(data) <= _AT_ONCE_BYTES:
            return self._write_copy(ref, data)
        return await asyncio.to_thread(self._write_copy, ref, data)

    async def forget_copy(self, ref: PayloadRef) -> None:
        """Drop the copy; dropping what is not there is no error."""
        self._remove_segment(segment_format.build_segment_name(ref))

    def used_bytes(self) -> int:
        """Return how many bytes all processes of this node hold."""
        return self._budget.read_used_bytes()

    def tend_segments(self, *, interval_s: float) -> Counter[str]:
        """Remove this process's expired segments; sweep when nobody of this node has lately."""
        removed_counts = self._remove_expired()
        now_s = self._clock.now().timestamp()
        if segment_directory.is_sweep_due(self._place.parent, now_s=now_s, interval_s=interval_s):
            removed_counts += self.sweep_node()
        return removed_counts

    def sweep_node(self) -> Counter[str]:
        """Remove what the dead and the expired left on this node; return how many, by reason."""
        root, removed_counts = self._place.parent, Counter[str]()
        moment = SweepMoment(
            monotonic_s=self._clock.monotonic_s(),
            now_s=self._clock.now().timestamp(),
            torn_age_s=self._valid_s,
        )

        def sweep_and_measure() -> int:
            swept_counts, size = self._sweeper.sweep_segments(moment)
            removed_counts.update(swept_counts)
            return size

        if not self._budget.recount_bytes(sweep_and_measure):
            sweep_and_measure()
        segment_directory.remove_empty_stores(root, but=self._place)
        return removed_counts

    def close(self) -> None:
        """Remove this process's own segments."""
        for name in list(self._until_by_name):
            self._remove_segment(name)
        with suppress(OSError):
            # Others' segments keep it.
            self._place.rmdir()
        self._budget.close()

    def _remove_expired(self) -> Counter[str]:
        counter: Counter[str] = Counter()
        now_s = self._clock.monotonic_s()
        for name, until_s in list(self._until_by_name.items()):
            if until_s > now_s:
                continue
            with suppress(OSError):
                trailer = segment_sweep.read_segment_trailer(self._place / name)
                if trailer is not None and trailer.valid_until_s > now_s:
                    self._until_by_name[name] = trailer.valid_until_s
                    continue
            if self._remove_segment(name):
                counter[segment_sweep.EXPIRED] += 1
        return counter

    def _open_segment(self, ref: PayloadRef) -> _OpenSegment | None:
        """Open a segment that is whole, of this content, and within its lease."""
        try:
            descriptor = os.open(
                self._place / segment_format.build_segment_name(ref),
                os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW,
            )
        except OSError:
            return None
        segment = self._check_segment(descriptor, ref)
        if segment is None:
            os.close(descriptor)
        return segment

    def _check_segment(self, descriptor: int, ref: PayloadRef) -> _OpenSegment | None:
        try:
            size = os.fstat(descriptor).st_size
            length = segment_format.unpack_length(os.pread(descriptor, HEADER_BYTES, 0))
            if length is None or size != HEADER_BYTES + length + TRAILER_BYTES:
                return None
            tail = os.pread(descriptor, TRAILER_BYTES, HEADER_BYTES + length)
            trailer = segment_format.unpack_trailer(tail)
            now_s = self._clock.monotonic_s()
            if trailer is None or trailer.sha256 != ref.sha256 or trailer.valid_until_s <= now_s:
                return None
            if trailer.valid_until_s - now_s <= self._valid_s / 2:
                # What is read stays: a hit late in the lease begins another one.
                lease = segment_format.pack_lease(now_s + self._valid_s)
                os.pwrite(descriptor, lease, size - LEASE_BYTES)
        except OSError:
            return None
        return _OpenSegment(
            descriptor=descriptor, length=length, valid_until_s=trailer.valid_until_s
        )

    def _write_copy(self, ref: PayloadRef, data: bytes) -> bool:
        name = segment_format.build_segment_name(ref)
        size = segment_format.count_taken_bytes(HEADER_BYTES + len(data) + TRAILER_BYTES)
        if (self._place / name).exists():
            return True
        if not self._budget.take_bytes(size):
            return False
        self._number += 1
        part = self._place / segment_directory.build_part_name(self._me, self._number)
        is_kept = False
        try:
            is_kept = self._write_segment(part, self._place / name, ref, data)
        except OSError:
            # Shared memory is full or not there: the store has the content.
            is_kept = False
        finally:
            part.unlink(missing_ok=True)
            if is_kept:
                self._until_by_name[name] = self._clock.monotonic_s() + self._valid_s
            else:
                self._budget.give_back_bytes(size)
        return is_kept

    def _write_segment(self, part: Path, target: Path, ref: PayloadRef, data: bytes) -> bool:
        trailer = SegmentTrailer(
            sha256=ref.sha256,
            owner=self._me,
            valid_until_s=self._clock.monotonic_s() + self._valid_s,
        )
        part.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(part, flags, 0o600)
        try:
            # Written, never mapped for writing: a full memory file system is then an error and
            # not a signal that ends the process.
            for piece in (
                segment_format.pack_header(len(data)),
                data,
                segment_format.pack_trailer(trailer),
            ):
                _write_all(descriptor, piece)
        finally:
            os.close(descriptor)
        try:
            # Complete or not there at all; the first one stays.
            os.link(part, target)
        except FileExistsError:
            return False
        return True

    def _remove_segment(self, name: str) -> bool:
        file = self._place / name
        self._until_by_name.pop(name, None)
        try:
            size = file.stat().st_size
            file.unlink()
        except OSError:
            return False
        self._budget.give_back_bytes(segment_format.count_taken_bytes(size))
        return True


def read_mapped_table(buffer: Any) -> Any:
    """Read an Arrow stream in a buffer as a table that shares its memory; None if it is none.

    A schema and batches that do not fit the buffer are refused; the values are not looked at.
    """
    try:
        table = pa.ipc.open_stream(pa.BufferReader(buffer)).read_all()
        table.validate()
    except (OSError, pa.ArrowException):
        return None
    return table


def _read_segment(segment: _OpenSegment, ref: PayloadRef) -> bytes | None:
    try:
        data = os.pread(segment.descriptor, segment.length, HEADER_BYTES)
        while 0 < len(data) < segment.length:
            piece = os.pread(
                segment.descriptor, segment.length - len(data), HEADER_BYTES + len(data)
            )
            if not piece:
                return None
            data += piece
    except OSError:
        return None
    finally:
        os.close(segment.descriptor)
    return data if codec.digest_hex(data) == ref.sha256 else None


def _write_all(descriptor: int, data: bytes) -> None:
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[os.write(descriptor, unwritten) :]
