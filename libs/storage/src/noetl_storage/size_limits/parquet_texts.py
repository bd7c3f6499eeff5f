"""Texts of Parquet's pages and their lengths: plain, as differences, or in a dictionary."""

import struct
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from noetl_storage.size_limits.parquet_footer import ColumnLeaf
from noetl_storage.size_limits.parquet_pages import DATA, ColumnChunk, ParquetPage, read_page_body
from noetl_storage.size_limits.refusals import MalformedBytes

# Writers use 128.
_BLOCK_VALUES_MAX = 8192
_LENGTH = struct.Struct("<I")
_JOINED_BYTES = 1024 * 1024
_LENGTH_BYTES = 4
_WORDS_MAX = 1_000_000


class DeltaLengths:
    """Lengths in bytes, read one by one and never held: a few bytes tell of millions.

    Once they are read, `end` is where they end. Raises `MalformedBytes`.
    """

    def __init__(self, data: bytes, at: int, *, count_max: int) -> None:
        self._data = data
        try:
            self._block, at = read_varint(data, at)
            self._parts, at = read_varint(data, at)
            self.count, at = read_varint(data, at)
            first, self._at = read_varint(data, at)
        except IndexError as failure:
            raise _build_cut_error() from failure
        self._first = _decode_zigzag(first)
        self.end = self._at
        is_sound = 0 < self._parts <= self._block <= _BLOCK_VALUES_MAX
        if not is_sound or self._block % self._parts or self.count > count_max:
            raise MalformedBytes(
                "the lengths of the texts in a page are not written as they should be"
            )

    def __iter__(self) -> Iterator[int]:
        """Yield the lengths from the first one on."""
        at, lengths_left, last = self._at, self.count - 1, self._first
        if self.count:
            yield _check_length(last)
        try:
            while lengths_left > 0:
                encoded_minimum, at = read_varint(self._data, at)
                widths, at = self._data[at : at + self._parts], at + self._parts
                for part in range(self._parts):
                    width = widths[part]
                    if lengths_left <= 0:
                        break
                    packed_steps, at = self._read_packed(at, width)
                    for step in _unpack_steps(
                        packed_steps, width, min(lengths_left, self._block // self._parts)
                    ):
                        last = (
                            last + _decode_zigzag(encoded_minimum) + step + 0x80000000 & 0xFFFFFFFF
                        ) - 0x80000000
                        yield _check_length(last)
                    lengths_left -= self._block // self._parts
        except IndexError as failure:
            raise _build_cut_error() from failure
        self.end = at

    def _read_packed(self, at: int, width: int) -> tuple[int, int]:
        end = at + self._block // self._parts * width // 8
        if end > len(self._data):
            raise IndexError("a block is cut off")
        return int.from_bytes(self._data[at:end], "little"), end


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, and return it with where it ends."""
    varint = shift = 0
    while True:
        byte = data[at]
        at += 1
        varint |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - the high bit says that more follows
            return varint, at
        shift += 7


def _unpack_steps(packed_steps: int, width: int, count: int) -> Iterator[int]:
    mask = (1 << width) - 1
    for _ in range(count):
        yield packed_steps & mask
        packed_steps >>= width


def _decode_zigzag(encoded_number: int) -> int:
    return (encoded_number >> 1) ^ -(encoded_number & 1)


def _check_length(length: int) -> int:
    if length < 0:
        raise MalformedBytes("a text in a page is shorter than nothing")
    return length


def _build_cut_error() -> MalformedBytes:
    return MalformedBytes("a page ends within the lengths of its texts")


def read_text_lengths(body: bytes, count: int) -> list[int]:
    """Return the lengths of so many texts, each of which stands behind its length."""
    at = 0
    text_lengths: list[int] = []
    length_at, add = _LENGTH.unpack_from, text_lengths.append
    try:
        for _ in range(count):
            (size,) = length_at(body, at)
            add(size)
            at += 4 + size
    except struct.error as failure:
        raise MalformedBytes("a dictionary ends within its texts") from failure
    return text_lengths


def find_values_start(body: bytes, page: ParquetPage, *, is_absent: bool, is_repeated: bool) -> int:
    """Return where the values of a page begin, behind what says which are absent or repeated."""
    if page.kind != DATA:
        return page.levels_bytes
    at = 0
    for has_levels in (is_repeated, is_absent):
        if has_levels:
            at += 4 + int.from_bytes(body[at : at + 4], "little")
    return at


def count_referred_bytes(body: bytes, at: int, lengths: list[int], values_max: int) -> int:
    """Return how long the texts are, with lengths known, that the values of a page refer to.

    They are written as runs of one number, and groups of eight of so many bits each.
    """
    try:
        width, at = body[at], at + 1
        mask, size, values_left = (1 << width) - 1, 0, values_max
        while at < len(body) and values_left > 0:
            head, at = read_varint(body, at)
            count = min(values_left, (head >> 1) * (8 if head & 1 else 1))
            values_left -= count
            if head & 1 and width:
                end = min(at + (head >> 1) * width, len(body))
                size += _count_grouped_bytes(body[at:end], (width, mask, count), lengths)
                at = end
            else:
                bytes_each = 0 if head & 1 else (width + 7) // 8
                place = int.from_bytes(body[at : at + bytes_each], "little")
                size += count * lengths[place]
                at += bytes_each
    except IndexError as failure:
        raise MalformedBytes("a page refers to texts that are not in its dictionary") from failure
    return size


def _count_grouped_bytes(data: bytes, form: tuple[int, int, int], lengths: list[int]) -> int:
    """Add up lengths; `form` is the bits of each place, their mask, and how many there are."""
    width, mask, places_left = form
    size = 0
    for start in range(0, len(data), width):
        packed_places = int.from_bytes(data[start : start + width], "little")
        for _ in range(min(8, places_left)):
            size += lengths[packed_places & mask]
            packed_places >>= width
        places_left -= 8
    return size


def count_shared_bytes(body: bytes, at: int, values_max: int) -> int:
    """Return how long all texts are that are kept as what they share with the one before."""
    prefixes = DeltaLengths(body, at, count_max=values_max)
    size = sum(prefixes)
    return size + sum(DeltaLengths(body, prefixes.end, count_max=values_max))


def rebuild_shared_texts(body: bytes, at: int, values_max: int, *, overlap: int) -> Iterator[bytes]:
    """Yield what each text adds to the one before, behind so much of what they share, in pieces."""
    prefixes = DeltaLengths(body, at, count_max=values_max)
    _read_to_end(prefixes)
    suffixes = DeltaLengths(body, prefixes.end, count_max=values_max)
    _read_to_end(suffixes)
    if prefixes.count != suffixes.count:
        raise MalformedBytes("texts in a page have other beginnings than ends")
    at, text = suffixes.end, bytearray()
    text_parts: list[bytes] = []
    text_parts_bytes = 0
    for prefix, suffix in zip(prefixes, suffixes, strict=True):
        if prefix > len(text) or at + suffix > len(body):
            raise MalformedBytes("a text shares more than the one before has, or is cut off")
        text[prefix:] = body[at : at + suffix]
        at += suffix
        if not suffix:
            continue
        text_parts.append(bytes(text[max(0, prefix - overlap) :]))
        text_parts_bytes += len(text_parts[-1])
        if text_parts_bytes >= _JOINED_BYTES:
            yield b"\n".join(text_parts)
            text_parts, text_parts_bytes = [], 0
    yield b"\n".join(text_parts)


def _read_to_end(lengths: DeltaLengths) -> None:
    """Find out where lengths end."""
    for _ in lengths:
        continue


def join_split_values(values: bytes, width: int) -> bytes:
    """Undo `BYTE_STREAM_SPLIT`: all first bytes stand first, then all second ones, and so on.

    The collector of unused payloads looks for digests in such values.
    """
    count = len(values) // max(1, width)
    joined_values = bytearray(count * width)
    for place in range(width):
        joined_values[place::width] = values[place * count : (place + 1) * count]
    return bytes(joined_values)


class DictionaryTexts(Struct, kw_only=True):
    """Pages of a leaf in one row group whose values refer to texts of a dictionary."""

    column: ColumnChunk
    dictionary: ParquetPage
    pages: list[ParquetPage]
    longest: int = 0

    def __post_init__(self) -> None:
        # No text is longer than all of them without their lengths.
        lengths = _LENGTH_BYTES * self.dictionary.values
        self.longest = max(0, self.dictionary.unpacked_bytes - lengths)

    @property
    def total_bytes_max(self) -> int:
        """Return what the texts take at most."""
        return self.longest * sum(page.values for page in self.pages)

    def measure_longest(self, source: Any) -> None:
        """Find out how long the longest text is."""
        if self.dictionary.values <= _WORDS_MAX:
            self.longest = max(self._read_lengths(source), default=0)

    def iterate_sizes(self, source: Any, leaf: ColumnLeaf) -> Iterator[int]:
        """Yield what the texts of each page take; raises `Malformed`."""
        if self.dictionary.values > _WORDS_MAX:
            yield self.total_bytes_max
            return
        lengths = self._read_lengths(source)
        for page in self.pages:
            body = read_page_body(source, self.column, page)
            at = _find_leaf_values(body, page, leaf)
            yield count_referred_bytes(body, at, lengths, page.values)

    def _read_lengths(self, source: Any) -> list[int]:
        body = read_page_body(source, self.column, self.dictionary)
        return read_text_lengths(body, self.dictionary.values)


class SharedTexts(Struct, frozen=True, kw_only=True):
    """A page whose texts are kept as what they share with the one before, and the rest."""

    column: ColumnChunk
    page: ParquetPage

    @property
    def longest(self) -> int:
        """Return how long a text is at most: all rests together."""
        return self.page.unpacked_bytes

    @property
    def total_bytes_max(self) -> int:
        """Return what the texts take at most."""
        return self.page.values * self.longest

    def measure_longest(self, source: Any) -> None:
        """Find out nothing: the page would have to be read."""

    def iterate_sizes(self, source: Any, leaf: ColumnLeaf) -> Iterator[int]:
        """Yield what the texts take; raises `Malformed`."""
        body = read_page_body(source, self.column, self.page)
        yield count_shared_bytes(body, _find_leaf_values(body, self.page, leaf), self.page.values)


def _find_leaf_values(body: bytes, page: ParquetPage, leaf: ColumnLeaf) -> int:
    return find_values_start(body, page, is_absent=leaf.is_absent, is_repeated=leaf.lists > 0)
