"""Content comes in pieces that are worth a thread's time each."""

from collections.abc import AsyncIterator

import pytest

from noetl_storage.payloads import objects
from noetl_storage.payloads.objects import CHUNK_BYTES


async def of(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.mark.parametrize(
    ("sizes", "joined"),
    [
        ([], []),
        ([0], [0]),
        ([1, 2, 3], [6]),
        ([CHUNK_BYTES - 1, 1, 5], [CHUNK_BYTES, 5]),
        ([CHUNK_BYTES * 3, 1], [CHUNK_BYTES * 3, 1]),
        ([CHUNK_BYTES, CHUNK_BYTES], [CHUNK_BYTES, CHUNK_BYTES]),
    ],
)
async def test_small_pieces_travel_together(sizes: list[int], joined: list[int]) -> None:
    pieces = [bytes([place + 1]) * size for place, size in enumerate(sizes)]
    found = [piece async for piece in objects.join_small_pieces(of(pieces))]
    assert [len(piece) for piece in found] == joined
    assert b"".join(found) == b"".join(pieces)


async def test_what_is_large_is_cut() -> None:
    data = bytes(range(256)) * (CHUNK_BYTES // 128) + b"rest"
    pieces = [piece async for piece in objects.cut_into_chunks(data)]
    assert [len(piece) for piece in pieces] == [CHUNK_BYTES, CHUNK_BYTES, 4]
    assert b"".join(pieces) == data
