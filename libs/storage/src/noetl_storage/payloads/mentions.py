"""Which content a payload mentions: every digest that stands in its bytes counts.

Results, parts and records name other payloads by digest. Whoever collects takes any 64 hexadecimal
digits for such a name: what is kept for nothing costs space, what is not kept is lost.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from typing import TYPE_CHECKING

from noetl_storage import digests
from noetl_storage.deferred import Deferred

if TYPE_CHECKING:
    from noetl_storage import encoding
else:
    encoding = Deferred("noetl_storage.encoding")

# More than a digest, so that none is cut in two.
_OVERLAP_BYTES = 128


async def mentioned(pieces: AsyncIterator[bytes], among: Collection[str]) -> set[str]:
    """Return which of the digests an object mentions; what is packed is unpacked for it."""
    found: set[str] = set()
    head, packed = b"", None
    async for piece in pieces:
        if packed is not None:
            packed += piece
            continue
        head += piece
        if len(head) < encoding.MAGIC_BYTES_MAX:
            continue
        if encoding.is_packed(head):
            packed = bytearray(head)
            continue
        found |= _known(head, among)
        head = head[-_OVERLAP_BYTES:]
    if packed is None:
        return found | _known(head, among)
    return found | await asyncio.to_thread(_unpacked, bytes(packed), among)


def _unpacked(data: bytes, among: Collection[str]) -> set[str]:
    found: set[str] = set()
    for text in _overlapping(encoding.texts(data)):
        found |= _known(text, among)
    return found


def _overlapping(texts: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    before = b""
    for text in texts:
        yield before + text[:_OVERLAP_BYTES]
        yield text
        before = bytes(text[-_OVERLAP_BYTES:])


def _known(text: bytes | memoryview, among: Collection[str]) -> set[str]:
    return digests.known(digests.runs(text), among)
