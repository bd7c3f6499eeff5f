"""Texts in a page of Parquet: how long the longest is, and what shared beginnings stand for."""

import struct
from collections.abc import Iterator

from noetl_storage.unpacking.deltas import Lengths, unsigned
from noetl_storage.unpacking.parquet_pages import DATA, Page
from noetl_storage.unpacking.refusals import Malformed

_LENGTH = struct.Struct("<I")
_JOINED_BYTES = 1024 * 1024


def lengths_of(body: bytes, count: int) -> list[int]:
    """Return the lengths of so many texts, each of which stands behind its length."""
    at = 0
    found: list[int] = []
    length_at, add = _LENGTH.unpack_from, found.append
    try:
        for _ in range(count):
            (size,) = length_at(body, at)
            add(size)
            at += 4 + size
    except struct.error as failure:
        raise Malformed("a dictionary ends within its texts") from failure
    return found


def values_at(body: bytes, page: Page, *, is_absent: bool, is_repeated: bool) -> int:
    """Return where the values of a page begin, behind what says which are absent or repeated."""
    if page.kind != DATA:
        return page.levels_bytes
    at = 0
    for has_levels in (is_repeated, is_absent):
        if has_levels:
            at += 4 + int.from_bytes(body[at : at + 4], "little")
    return at


def referred_bytes(body: bytes, at: int, lengths: list[int], values_max: int) -> int:
    """Return how long the texts are, with lengths known, that the values of a page refer to.

    They are written as runs of one number, and groups of eight of so many bits each.
    """
    try:
        width, at = body[at], at + 1
        mask, size, left = (1 << width) - 1, 0, values_max
        while at < len(body) and left > 0:
            head, at = unsigned(body, at)
            count = min(left, (head >> 1) * (8 if head & 1 else 1))
            left -= count
            if head & 1 and width:
                end = min(at + (head >> 1) * width, len(body))
                size += _grouped_bytes(body[at:end], (width, mask, count), lengths)
                at = end
            else:
                bytes_each = 0 if head & 1 else (width + 7) // 8
                place = int.from_bytes(body[at : at + bytes_each], "little")
                size += count * lengths[place]
                at += bytes_each
    except IndexError as failure:
        raise Malformed("a page refers to texts that are not in its dictionary") from failure
    return size


def _grouped_bytes(data: bytes, form: tuple[int, int, int], lengths: list[int]) -> int:
    """Add up lengths; `form` is the bits of each place, their mask, and how many there are."""
    width, mask, left = form
    size = 0
    for start in range(0, len(data), width):
        packed = int.from_bytes(data[start : start + width], "little")
        for _ in range(min(8, left)):
            size += lengths[packed & mask]
            packed >>= width
        left -= 8
    return size


def shared_bytes(body: bytes, at: int, values_max: int) -> int:
    """Return how long all texts are that are kept as what they share with the one before."""
    prefixes = Lengths(body, at, count_max=values_max)
    size = sum(prefixes)
    return size + sum(Lengths(body, prefixes.end, count_max=values_max))


def shared_texts(body: bytes, at: int, values_max: int, *, overlap: int) -> Iterator[bytes]:
    """Yield what each text adds to the one before, behind so much of what they share, in pieces."""
    prefixes = Lengths(body, at, count_max=values_max)
    _pass(prefixes)
    suffixes = Lengths(body, prefixes.end, count_max=values_max)
    _pass(suffixes)
    if prefixes.count != suffixes.count:
        raise Malformed("texts in a page have other beginnings than ends")
    at, text = suffixes.end, bytearray()
    held: list[bytes] = []
    held_bytes = 0
    for prefix, suffix in zip(prefixes, suffixes, strict=True):
        if prefix > len(text) or at + suffix > len(body):
            raise Malformed("a text shares more than the one before has, or is cut off")
        text[prefix:] = body[at : at + suffix]
        at += suffix
        if not suffix:
            continue
        held.append(bytes(text[max(0, prefix - overlap) :]))
        held_bytes += len(held[-1])
        if held_bytes >= _JOINED_BYTES:
            yield b"\n".join(held)
            held, held_bytes = [], 0
    yield b"\n".join(held)


def _pass(lengths: Lengths) -> None:
    """Find out where lengths end."""
    for _ in lengths:
        continue


def unsplit(values: bytes, width: int) -> bytes:
    """Put values together of which all first bytes stand first, then all second ones, and so on."""
    count = len(values) // max(1, width)
    found = bytearray(count * width)
    for place in range(width):
        found[place::width] = values[place * count : (place + 1) * count]
    return bytes(found)
