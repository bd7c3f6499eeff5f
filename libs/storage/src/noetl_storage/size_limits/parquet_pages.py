"""Pages of Parquet's columns and their headers, which are written in Thrift's compact form.

To predict what Parquet's own reader will do, this one reads as it does: a field of another type
than expected is skipped, of a repeated field the last counts, and numbers wrap.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from msgspec import Struct

from noetl_storage.size_limits.refusals import MalformedBytes

I32, BINARY, LIST, STRUCT = 5, 8, 9, 12
TRUE, FALSE = 1, 2
_BYTE, _I16, _I64, _DOUBLE, _SET, _MAP = 3, 4, 6, 7, 10, 11
_WIDTH = {_BYTE: 1, _DOUBLE: 8, TRUE: 1, FALSE: 1}
_NUMBERS = frozenset({_I16, I32, _I64})
_LONG = 15
_VARINT_BYTES_MAX = 10
_DEPTH_MAX = 64
DATA, DICTIONARY, DATA_2 = 0, 2, 3
PLAIN, DELTA_LENGTHS, DELTA_TEXTS, SPLIT = 0, 6, 7, 9
BY_DICTIONARY = frozenset({2, 8})
_HEADER_BYTES, _HEADER_BYTES_MAX = 1024, 16 * 1024 * 1024
# Old writers did not count the header of the dictionary, and readers allow for that.
_PADDING_BYTES = 100
_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4": "lz4_raw"}
_STATISTICS_THINGS_MAX = 1000


class TooManyElements(MalformedBytes):
    """There are more descriptions than a reader of them all may hold in memory."""


class CompactReader:
    """A place in bytes; reading on moves it. Raises `IndexError` where the bytes end too early.

    `things_max` bounds the elements of lists that are more than a number: each is an object in
    the memory of a reader of them all.
    """

    def __init__(self, data: bytes, *, things_max: int) -> None:
        self.at = 0
        self._data = data
        self._elements_left = things_max

    def iterate_fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a structure; its value is to be read or skipped.

        The value of a truth is its type: there is nothing to read.
        """
        number = 0
        while kind := (head := self._read_byte()) & 15:
            step = head >> 4
            number = _wrap_int16(number + step if step else self.read_int32())
            yield number, kind

    def read_int32(self) -> int:
        """Read a number."""
        varint = self._read_varint() & 0xFFFFFFFF
        return (varint >> 1) ^ -(varint & 1)

    def read_binary(self) -> bytes:
        """Read a text or bytes."""
        length = self._read_varint() & 0xFFFFFFFF
        self.at += length
        if self.at > len(self._data):
            raise IndexError("a text ends behind the bytes")
        return self._data[self.at - length : self.at]

    def read_list_head(self) -> tuple[int, int]:
        """Begin a list: return how many elements of which type follow."""
        head = self._read_byte()
        count = head >> 4
        if count == _LONG:
            count = self._read_varint() & 0xFFFFFFFF
        kind = head & 15
        if kind not in _NUMBERS and kind not in _WIDTH:
            self._elements_left -= count
            if self._elements_left < 0:
                raise TooManyElements("there are more descriptions than are read")
        return count, kind

    def skip_value(self, kind: int, depth: int = _DEPTH_MAX) -> None:
        """Pass over a field's value."""
        if kind not in (TRUE, FALSE):
            self._skip_element(kind, depth)

    def _skip_element(self, kind: int, depth: int) -> None:
        if depth == 0:
            raise MalformedBytes("structures lie too deep in each other")
        if kind in _NUMBERS:
            self._read_varint()
        elif kind in _WIDTH:
            self._move_on(_WIDTH[kind])
        elif kind == BINARY:
            self._move_on(self._read_varint() & 0xFFFFFFFF)
        elif kind == STRUCT:
            for _, inner in self.iterate_fields():
                self.skip_value(inner, depth - 1)
        elif kind in (LIST, _SET):
            count, inner = self.read_list_head()
            self._skip_elements(count, inner, depth)
        elif kind == _MAP:
            self._skip_map(depth)
        else:
            raise MalformedBytes(f"there is no type {kind}")

    def _skip_elements(self, count: int, kind: int, depth: int) -> None:
        if kind in _WIDTH:
            self._move_on(count * _WIDTH[kind])
            return
        for _ in range(count):
            self._skip_element(kind, depth - 1)

    def _skip_map(self, depth: int) -> None:
        count = self._read_varint() & 0xFFFFFFFF
        kinds = self._read_byte() if count else 0
        for _ in range(count):
            self._skip_element(kinds >> 4, depth - 1)
            self._skip_element(kinds & 15, depth - 1)

    def _move_on(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise IndexError("a value ends behind the bytes")

    def _read_byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        return byte

    def _read_varint(self) -> int:
        varint = shift = 0
        while True:
            data = self._data[self.at]
            self.at += 1
            varint |= (data & 127) << shift
            if data < 128:  # noqa: PLR2004 - the high bit says that more follows
                return varint
            shift += 7
            if shift >= 7 * _VARINT_BYTES_MAX:
                raise MalformedBytes("a number has too many digits")


def _wrap_int16(number: int) -> int:
    """Wrap a number as 16 bits do."""
    return (number + 0x8000 & 0xFFFF) - 0x8000


class ParquetPage(Struct, frozen=True, kw_only=True):
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


class ColumnChunk(Struct, frozen=True, kw_only=True):
    """Where the pages of one column of one row group lie, and how they are packed."""

    at: int
    end: int
    values: int
    packing: str


def find_column_chunk(about: Any, source_bytes: int) -> ColumnChunk:
    """Find a column of a row group by the file's summary; raises `MalformedBytes`."""
    first, length = about.data_page_offset, about.total_compressed_size
    dictionary = about.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < first:
        first = dictionary
    if first < 0 or length < 0 or first + length > source_bytes:
        raise MalformedBytes("a column lies outside of the file")
    end = min(first + length + _PADDING_BYTES, source_bytes)
    return ColumnChunk(at=first, end=end, values=about.num_values, packing=about.compression)


def iterate_pages(source: Any, column: ColumnChunk) -> Iterator[ParquetPage]:
    """Yield the pages that a reader of the column comes to; raises `MalformedBytes`."""
    at, value_count = column.at, 0
    while value_count < column.values and at < column.end:
        page = _read_page(source, at, column.end)
        at = page.at + page.packed_bytes
        if at > column.end:
            raise MalformedBytes("a page ends behind its column")
        if page.kind in (DATA, DATA_2):
            value_count += page.values
        if page.kind in (DATA, DICTIONARY, DATA_2):
            yield page


def read_page_body(source: Any, column: ColumnChunk, page: ParquetPage) -> bytes:
    """Return what a page holds, unpacked; raises `MalformedBytes`."""
    data: bytes = source.read_at(page.packed_bytes, page.at)
    if column.packing == "UNCOMPRESSED" or not page.is_packed:
        return data
    levels, data = data[: page.levels_bytes], data[page.levels_bytes :]
    size = page.unpacked_bytes - len(levels)
    if size < 0 or column.packing not in _CODECS:
        raise MalformedBytes(f"a page is packed as {column.packing}, in {size} bytes")
    if size == 0:
        return levels
    return levels + _decompress_page(data, size, _CODECS[column.packing])


def _decompress_page(data: bytes, size: int, codec: str) -> bytes:
    try:
        page: bytes = pa.decompress(data, decompressed_size=size, codec=codec, asbytes=True)
    except (OSError, pa.ArrowException):
        if codec != "lz4_raw":
            raise
        return _decompress_hadoop_lz4(data, size)
    return page


def _decompress_hadoop_lz4(data: bytes, size: int) -> bytes:
    """Undo what Hadoop calls LZ4: blocks, each behind the lengths of what it was and is."""
    unpacked = bytearray()
    while data:
        plain_bytes, packed_bytes = int.from_bytes(data[:4]), int.from_bytes(data[4:8])
        if packed_bytes > len(data) - 8 or len(unpacked) + plain_bytes > size:
            raise MalformedBytes("a page is packed as LZ4 in neither way")
        block = data[8 : 8 + packed_bytes]
        unpacked += pa.decompress(
            block, decompressed_size=plain_bytes, codec="lz4_raw", asbytes=True
        )
        data = data[8 + packed_bytes :]
    return bytes(unpacked)


def _read_page(source: Any, at: int, end: int) -> ParquetPage:
    """Read the header at a place; statistics in it may be long."""
    window = _HEADER_BYTES
    while True:
        data = source.read_at(min(window, end - at), at)
        try:
            return _parse_page_header(data, at)
        except IndexError:
            if window >= min(end - at, _HEADER_BYTES_MAX):
                raise MalformedBytes("a page's header does not end") from None
        window *= 4


def _parse_page_header(data: bytes, at: int) -> ParquetPage:
    header = CompactReader(data, things_max=_STATISTICS_THINGS_MAX)
    header_numbers: dict[int, int] = {}
    inner_numbers: dict[int, dict[int, int]] = {}
    for number, kind in header.iterate_fields():
        if kind == I32:
            header_numbers[number] = header.read_int32()
        elif kind == STRUCT and number in (5, 7, 8):
            inner_numbers[number] = _read_struct_numbers(header)
        else:
            header.skip_value(kind)
    if not header_numbers.keys() >= {1, 2, 3} or min(header_numbers[2], header_numbers[3]) < 0:
        raise MalformedBytes("a page's header lacks its lengths")
    return _build_page(header_numbers, inner_numbers, at + header.at)


def _read_struct_numbers(header: CompactReader) -> dict[int, int]:
    """Read the numbers of a structure, and its truths under their numbers below zero."""
    struct_numbers: dict[int, int] = {}
    for number, kind in header.iterate_fields():
        if kind == I32:
            struct_numbers[number] = header.read_int32()
        elif kind in (TRUE, FALSE):
            struct_numbers[-number] = kind == TRUE
        else:
            header.skip_value(kind)
    return struct_numbers


def _build_page(
    header_numbers: dict[int, int], inner_numbers: dict[int, dict[int, int]], at: int
) -> ParquetPage:
    kind = header_numbers[1]
    about = inner_numbers.get({DATA: 5, DICTIONARY: 7, DATA_2: 8}.get(kind, 0), {})
    is_newer = kind == DATA_2
    levels = about.get(5, 0) + about.get(6, 0) if is_newer else 0
    values = about.get(1, 0)
    if values < 0 or not 0 <= levels <= header_numbers[3]:
        raise MalformedBytes("a page's header has numbers below zero")
    return ParquetPage(
        kind=kind,
        values=values,
        encoding=about.get(4 if is_newer else 2, PLAIN),
        at=at,
        packed_bytes=header_numbers[3],
        unpacked_bytes=header_numbers[2],
        levels_bytes=levels,
        is_packed=not is_newer or bool(about.get(-7, 1)),
    )
