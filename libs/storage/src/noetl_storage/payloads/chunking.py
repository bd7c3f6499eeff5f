"""Cuts large content into pieces, and joins small ones, for the hand-over between threads."""

from collections.abc import AsyncIterator

from noetl_storage.payloads.objects import CHUNK_BYTES


async def cut_into_chunks(data: bytes) -> AsyncIterator[bytes]:
    """Yield large content piece by piece."""
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


async def join_small_pieces(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces of any size joined until they are large enough, the last one as it is."""
    held: list[bytes] = []
    size = 0
    async for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
