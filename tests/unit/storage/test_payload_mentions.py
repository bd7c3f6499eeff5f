import itertools
import random
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from noetl_contracts import codec
from noetl_storage import encoding
from noetl_storage.payloads.mentions import mentioned

DIGESTS = [codec.digest(b"%d" % n) for n in range(50)]
ROWS = {"tasks": {"t": {"raw": {"columns": ["a"], "rows": [{"a": f"x {one}"} for one in DIGESTS]}}}}


async def in_pieces(data: bytes, sizes: list[int]) -> AsyncIterator[bytes]:
    place = 0
    for size in itertools.cycle(sizes):
        if place >= len(data):
            return
        yield data[place : place + size]
        place += size


def forms() -> dict[str, bytes]:
    plain = codec.encode(ROWS)
    arrow = encoding.tabulate(ROWS, ("tasks", "t", "raw"), format_="arrow")
    parquet = encoding.tabulate(ROWS, ("tasks", "t", "raw"), format_="parquet")
    assert arrow is not None
    assert parquet is not None
    words = pa.table({"a": pa.array(DIGESTS).dictionary_encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, words.schema) as writer:
        writer.write_table(words)
    return {
        "json": plain,
        "gzip": encoding.compress(plain, "gzip"),
        "zstd": encoding.compress(plain, "zstd"),
        "arrow": arrow,
        "parquet": parquet,
        "packed parquet": encoding.compress(parquet, "zstd"),
        "dictionary": sink.getvalue().to_pybytes(),
        "glued": b"abcdef" + "".join(DIGESTS).encode(),
        "looks packed": b"PAR1" + plain,
    }


@pytest.mark.parametrize("form", forms())
@pytest.mark.parametrize("sizes", [[1], [63, 64, 65], [1000], [10**6]])
async def test_every_digest_is_found_whatever_the_form_and_the_pieces(
    form: str, sizes: list[int]
) -> None:
    data = forms()[form]
    if sizes == [1] and len(data) > 4000:
        sizes = [random.Random(form).randrange(2, 200)]
    wanted = set(DIGESTS[::2])
    assert await mentioned(in_pieces(data, sizes), wanted) == wanted


async def test_nothing_is_found_in_nothing() -> None:
    assert await mentioned(in_pieces(b"", [1]), set(DIGESTS)) == set()
    assert await mentioned(in_pieces(b"ab", [1]), set(DIGESTS)) == set()
