"""The format of a shared segment: its name with its owner, its header, trailer and lease."""

import os
import re
import struct
from pathlib import Path

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.payloads import PayloadRef

_PROCESSES = Path("/proc")
_STATE, _STARTED = 0, 19
_DEAD_STATES = frozenset({"Z", "X"})
_NAME = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)")
MAGIC = b"NOETLIPC"
VERSION = 1
HEADER_BYTES = 16
TRAILER_BYTES = 64
# Where the end of the lease stands, counted from the end of the segment.
LEASE_BYTES = 8
_HEADER = struct.Struct("<8sQ")
_TRAILER = struct.Struct("<32sQQQd")
_LEASE = struct.Struct("<d")
_LENGTH_BITS = 48
_LENGTH_MAX = (1 << _LENGTH_BITS) - 1
_NAME_DIGITS = 40
_PAGE_BYTES = 4096


class SegmentOwner(Struct, frozen=True, kw_only=True):
    """A process: its number, its start in ticks since boot, and who numbers it."""

    pid: int
    started: int
    namespace: int

    def __str__(self) -> str:
        return f"{self.namespace}-{self.pid}-{self.started}"


def parse_owner(text: str) -> SegmentOwner | None:
    """Read what `str` of an owner wrote, or None."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    namespace, pid, started = map(int, match.groups())
    return SegmentOwner(pid=pid, started=started, namespace=namespace)


def find_this_process() -> SegmentOwner | None:
    """Return this process, or None on a system without `/proc`."""
    process_stat = _read_process_stat(os.getpid())
    if process_stat is None:
        return None
    return SegmentOwner(pid=os.getpid(), started=process_stat[1], namespace=_read_namespace())


def is_alive(owner: SegmentOwner) -> bool | None:
    """Tell whether a process still runs; None when others number it and it cannot be seen."""
    if owner.namespace != _read_namespace():
        return None
    process_stat = _read_process_stat(owner.pid)
    return (
        process_stat is not None
        and process_stat[0] not in _DEAD_STATES
        and process_stat[1] == owner.started
    )


def _read_process_stat(pid: int) -> tuple[str, int] | None:
    """Return the state and the start of a process, or None when there is none."""
    try:
        text = (_PROCESSES / str(pid) / "stat").read_text(errors="replace")
        # The command stands in parentheses and may hold anything.
        fields = text.rpartition(")")[2].split()
        return fields[_STATE], int(fields[_STARTED])
    except (OSError, IndexError, ValueError):
        return None


def _read_namespace() -> int:
    """Return the number of the system's table of process numbers that this process sees."""
    try:
        return (_PROCESSES / "self/ns/pid").stat().st_ino
    except OSError:
        return 0


class SegmentTrailer(Struct, frozen=True, kw_only=True):
    """Which content a segment holds, who made it, and until when it may be read."""

    sha256: str
    owner: SegmentOwner
    valid_until_s: float


def build_segment_name(ref: PayloadRef) -> str:
    """Name the copy of a reference: tenant, organization and digest are all in it."""
    return codec.digest_hex(f"{ref.uri}\0{ref.sha256}".encode())[:_NAME_DIGITS]


def count_taken_bytes(size: int) -> int:
    """Return the bytes that a segment of a size takes: memory is given by pages."""
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES


def pack_header(length: int) -> bytes:
    """Pack the header of a payload of so many bytes."""
    assert 0 <= length <= _LENGTH_MAX
    return _HEADER.pack(MAGIC, VERSION << _LENGTH_BITS | length)


def unpack_length(header: bytes) -> int | None:
    """Return the payload's length, or None when this is no header of this version."""
    if len(header) != HEADER_BYTES:
        return None
    magic, number = _HEADER.unpack(header)
    if magic != MAGIC or number >> _LENGTH_BITS != VERSION:
        return None
    return int(number & _LENGTH_MAX)


def pack_trailer(trailer: SegmentTrailer) -> bytes:
    """Pack a trailer."""
    owner = trailer.owner
    return _TRAILER.pack(
        bytes.fromhex(trailer.sha256),
        owner.pid,
        owner.started,
        owner.namespace,
        trailer.valid_until_s,
    )


def unpack_trailer(data: bytes) -> SegmentTrailer | None:
    """Return a trailer, or None when it is torn."""
    if len(data) != TRAILER_BYTES:
        return None
    sha256, pid, started, namespace, valid_until_s = _TRAILER.unpack(data)
    owner = SegmentOwner(pid=pid, started=started, namespace=namespace)
    return SegmentTrailer(sha256=sha256.hex(), owner=owner, valid_until_s=valid_until_s)


def pack_lease(valid_until_s: float) -> bytes:
    """Pack the end of a lease alone."""
    return _LEASE.pack(valid_until_s)
