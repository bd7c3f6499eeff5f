"""The form of a segment: a header of 16 bytes, the payload, and a trailer that names its owner.

Header: the magic `NOETLIPC`, then a little-endian number of 64 bits whose upper 16 bits are the
version and whose lower 48 are the payload's length. The trailer, 64 bytes, is ours alone: whoever
only maps payloads reads the header and `length` bytes after it.
"""

import struct

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.payloads import PayloadRef
from noetl_storage.tiers.owners import Owner

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


class Trailer(Struct, frozen=True, kw_only=True):
    """Which content a segment holds, who made it, and until when it may be read."""

    sha256: str
    owner: Owner
    valid_until_s: float


def name_of(ref: PayloadRef) -> str:
    """Name the copy of a reference: tenant, organization and digest are all in it."""
    return codec.digest(f"{ref.uri}\0{ref.sha256}".encode())[:_NAME_DIGITS]


def taken(size: int) -> int:
    """Return the bytes that a segment of a size takes: memory is given by pages."""
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES


def write_header(length: int) -> bytes:
    """Pack the header of a payload of so many bytes."""
    assert 0 <= length <= _LENGTH_MAX
    return _HEADER.pack(MAGIC, VERSION << _LENGTH_BITS | length)


def read_length(header: bytes) -> int | None:
    """Return the payload's length, or None when this is no header of this version."""
    if len(header) != HEADER_BYTES:
        return None
    magic, number = _HEADER.unpack(header)
    if magic != MAGIC or number >> _LENGTH_BITS != VERSION:
        return None
    return int(number & _LENGTH_MAX)


def write_trailer(trailer: Trailer) -> bytes:
    """Pack a trailer."""
    owner = trailer.owner
    return _TRAILER.pack(
        bytes.fromhex(trailer.sha256),
        owner.pid,
        owner.started,
        owner.namespace,
        trailer.valid_until_s,
    )


def read_trailer(data: bytes) -> Trailer | None:
    """Return a trailer, or None when it is torn."""
    if len(data) != TRAILER_BYTES:
        return None
    sha256, pid, started, namespace, valid_until_s = _TRAILER.unpack(data)
    owner = Owner(pid=pid, started=started, namespace=namespace)
    return Trailer(sha256=sha256.hex(), owner=owner, valid_until_s=valid_until_s)


def write_lease(valid_until_s: float) -> bytes:
    """Pack the end of a lease alone."""
    return _LEASE.pack(valid_until_s)
