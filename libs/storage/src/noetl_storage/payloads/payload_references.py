"""Finds the digests of payloads that a payload's bytes contain.

Results, parts and records name other payloads by digest. The garbage collection takes any 64
hexadecimal digits for a digest: a payload too many costs space, a payload too few is lost data.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING

from noetl_contracts.payloads import is_packed
from noetl_storage.payloads.objects import SPOOL_BYTES
from noetl_storage.process import digests
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    from noetl_storage.arrow import encoding
    from noetl_storage.size_limits import texts
else:
    encoding = LazyModule("noetl_storage.arrow.encoding")
    texts = LazyModule("noetl_storage.size_limits.texts")

# More than a digest, so that none is cut in two.
_OVERLAP_BYTES = 128


async def find_mentioned(pieces: AsyncIterator[bytes], among: Collection[str]) -> set[str]:
    """Return which of the digests an object mentions; what is packed is unpacked for it.

    Raises `PayloadUnreadable` where that cannot be told within bounds, and `StorageUnavailable`
    where there is no room to lay a packed object aside.
    """
    mentioned_digests: set[str] = set()
    head, packed_file = b"", None
    with ExitStack() as stack:
        async for piece in pieces:
            if packed_file is not None:
                await asyncio.to_thread(texts.write_spooled, packed_file, piece)
                continue
            head += piece
            if len(head) < encoding.MAGIC_BYTES_MAX:
                continue
            if is_packed(head):
                packed_file = stack.enter_context(
                    tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)
                )
                await asyncio.to_thread(texts.write_spooled, packed_file, head)
                continue
            mentioned_digests |= _find_known(head, among)
            head = head[-_OVERLAP_BYTES:]
        if packed_file is None:
            return mentioned_digests | _find_known(head, among)
        return mentioned_digests | await asyncio.to_thread(_find_in_packed, packed_file, among)


def _find_in_packed(file: IO[bytes], among: Collection[str]) -> set[str]:
    mentioned_digests: set[str] = set()
    for text in _iterate_overlapping(texts.iterate_texts(file, overlap=_OVERLAP_BYTES)):
        mentioned_digests |= _find_known(text, among)
    return mentioned_digests


def _iterate_overlapping(pieces: Iterator[bytes]) -> Iterator[bytes]:
    before = b""
    for piece in pieces:
        yield before + piece[:_OVERLAP_BYTES]
        yield piece
        before = piece[-_OVERLAP_BYTES:]


def _find_known(text: bytes, among: Collection[str]) -> set[str]:
    return digests.find_known_digests(digests.list_hex_runs(text), among)
