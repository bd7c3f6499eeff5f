"""The pages of a Parquet file, by their own headers: the file's summary of them may say anything.

A header tells how many values its page holds and how long it is unpacked, and Parquet's reader
makes room for exactly that. So the headers, unlike the summary, bound what reading takes.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from msgspec import Struct

from noetl_storage.unpacking.refusals import Malformed
from noetl_storage.unpacking.thrift import FALSE, I32, STRUCT, TRUE, Compact

DATA, DICTIONARY, DATA_2 = 0, 2, 3
PLAIN, DELTA_LENGTHS, DELTA_TEXTS, SPLIT = 0, 6, 7, 9
BY_DICTIONARY = frozenset({2, 8})
_HEADER_BYTES, _HEADER_BYTES_MAX = 1024, 16 * 1024 * 1024
# Old writers did not count the header of the dictionary, and readers allow for that.
_PADDING_BYTES = 100
_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4": "lz4_raw"}
_STATISTICS_THINGS_MAX = 1000


class Page(Struct, frozen=True, kw_only=True):
    """What a page says of itself, and where its body lies.

    The first `levels_bytes` of the body, which say where values are absent or repeated, are apart
    and never packed; in pages of the older form they stand among the values, and this is zero.
    """

    kind: int
    values: int
    encoding: int
    at: int
    packed_bytes: int
    unpacked_bytes: int
    levels_bytes: int = 0
    is_packed: bool = True


class Column(Struct, frozen=True, kw_only=True):
    """Where the pages of one column of one row group lie, and how they are packed."""

    at: int
    end: int
    values: int
    packing: str


def column_of(about: Any, source_bytes: int) -> Column:
    """Find a column of a row group by the file's summary; raises `Malformed`."""
    first, length = about.data_page_offset, about.total_compressed_size
    dictionary = about.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < first:
        first = dictionary
    if first < 0 or length < 0 or first + length > source_bytes:
        raise Malformed("a column lies outside of the file")
    end = min(first + length + _PADDING_BYTES, source_bytes)
    return Column(at=first, end=end, values=about.num_values, packing=about.compression)


def pages_of(source: Any, column: Column) -> Iterator[Page]:
    """Yield the pages that a reader of the column comes to; raises `Malformed`."""
    at, seen = column.at, 0
    while seen < column.values and at < column.end:
        page = _page(source, at, column.end)
        at = page.at + page.packed_bytes
        if at > column.end:
            raise Malformed("a page ends behind its column")
        if page.kind in (DATA, DATA_2):
            seen += page.values
        if page.kind in (DATA, DICTIONARY, DATA_2):
            yield page


def body_of(source: Any, column: Column, page: Page) -> bytes:
    """Return what a page holds, unpacked; raises `Malformed`."""
    data: bytes = source.read_at(page.packed_bytes, page.at)
    if column.packing == "UNCOMPRESSED" or not page.is_packed:
        return data
    levels, data = data[: page.levels_bytes], data[page.levels_bytes :]
    size = page.unpacked_bytes - len(levels)
    if size < 0 or column.packing not in _CODECS:
        raise Malformed(f"a page is packed as {column.packing}, in {size} bytes")
    if size == 0:
        return levels
    return levels + _unpacked(data, size, _CODECS[column.packing])


def _unpacked(data: bytes, size: int, codec: str) -> bytes:
    try:
        found: bytes = pa.decompress(data, decompressed_size=size, codec=codec, asbytes=True)
    except (OSError, pa.ArrowException):
        if codec != "lz4_raw":
            raise
        return _unpacked_frames(data, size)
    return found


def _unpacked_frames(data: bytes, size: int) -> bytes:
    """Undo what Hadoop calls LZ4: blocks, each behind the lengths of what it was and is."""
    found = bytearray()
    while data:
        plain, packed = int.from_bytes(data[:4]), int.from_bytes(data[4:8])
        if packed > len(data) - 8 or len(found) + plain > size:
            raise Malformed("a page is packed as LZ4 in neither way")
        block = data[8 : 8 + packed]
        found += pa.decompress(block, decompressed_size=plain, codec="lz4_raw", asbytes=True)
        data = data[8 + packed :]
    return bytes(found)


def _page(source: Any, at: int, end: int) -> Page:
    """Read the header at a place; statistics in it may be long."""
    window = _HEADER_BYTES
    while True:
        data = source.read_at(min(window, end - at), at)
        try:
            return _parsed(data, at)
        except IndexError:
            if window >= min(end - at, _HEADER_BYTES_MAX):
                raise Malformed("a page's header does not end") from None
        window *= 4


def _parsed(data: bytes, at: int) -> Page:
    header = Compact(data, things_max=_STATISTICS_THINGS_MAX)
    own: dict[int, int] = {}
    inner: dict[int, dict[int, int]] = {}
    for number, kind in header.fields():
        if kind == I32:
            own[number] = header.int32()
        elif kind == STRUCT and number in (5, 7, 8):
            inner[number] = _numbers(header)
        else:
            header.skip(kind)
    if not own.keys() >= {1, 2, 3} or min(own[2], own[3]) < 0:
        raise Malformed("a page's header lacks its lengths")
    return _page_of(own, inner, at + header.at)


def _numbers(header: Compact) -> dict[int, int]:
    """Read the numbers of a structure, and its truths under their numbers below zero."""
    found: dict[int, int] = {}
    for number, kind in header.fields():
        if kind == I32:
            found[number] = header.int32()
        elif kind in (TRUE, FALSE):
            found[-number] = kind == TRUE
        else:
            header.skip(kind)
    return found


def _page_of(own: dict[int, int], inner: dict[int, dict[int, int]], at: int) -> Page:
    kind = own[1]
    about = inner.get({DATA: 5, DICTIONARY: 7, DATA_2: 8}.get(kind, 0), {})
    is_newer = kind == DATA_2
    levels = about.get(5, 0) + about.get(6, 0) if is_newer else 0
    values = about.get(1, 0)
    if values < 0 or not 0 <= levels <= own[3]:
        raise Malformed("a page's header has numbers below zero")
    return Page(
        kind=kind,
        values=values,
        encoding=about.get(4 if is_newer else 2, PLAIN),
        at=at,
        packed_bytes=own[3],
        unpacked_bytes=own[2],
        levels_bytes=levels,
        is_packed=not is_newer or bool(about.get(-7, 1)),
    )
