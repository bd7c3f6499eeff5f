"""Thrift's compact form, in which Parquet describes itself, read one field at a time.

Whoever foretells what Parquet's own reader will do reads as it does: a field of another type than
expected is skipped, a repeated one counts as it came last, and numbers wrap.
"""

from collections.abc import Iterator

from noetl_storage.unpacking.refusals import Malformed

I32, BINARY, LIST, STRUCT = 5, 8, 9, 12
TRUE, FALSE = 1, 2
_BYTE, _I16, _I64, _DOUBLE, _SET, _MAP = 3, 4, 6, 7, 10, 11
_WIDTH = {_BYTE: 1, _DOUBLE: 8, TRUE: 1, FALSE: 1}
_NUMBERS = frozenset({_I16, I32, _I64})
_LONG = 15
_VARINT_BYTES_MAX = 10
_DEPTH_MAX = 64


class TooMany(Malformed):
    """There are more descriptions than whoever reads them all would hold."""


class Compact:
    """A place in bytes; reading on moves it. Raises `IndexError` where the bytes end too early.

    `things_max` bounds the elements of lists that are more than a number: each is an object in
    the memory of whoever reads them all.
    """

    def __init__(self, data: bytes, *, things_max: int) -> None:
        self.at = 0
        self._data = data
        self._things_left = things_max

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a structure; its value is to be read or skipped.

        The value of a truth is its type: there is nothing to read.
        """
        number = 0
        while kind := (head := self._byte()) & 15:
            step = head >> 4
            number = _short(number + step if step else self.int32())
            yield number, kind

    def int32(self) -> int:
        """Read a number."""
        found = self._unsigned() & 0xFFFFFFFF
        return (found >> 1) ^ -(found & 1)

    def binary(self) -> bytes:
        """Read a text or bytes."""
        length = self._unsigned() & 0xFFFFFFFF
        self.at += length
        if self.at > len(self._data):
            raise IndexError("a text ends behind the bytes")
        return self._data[self.at - length : self.at]

    def elements(self) -> tuple[int, int]:
        """Begin a list: return how many elements of which type follow."""
        head = self._byte()
        count = head >> 4
        if count == _LONG:
            count = self._unsigned() & 0xFFFFFFFF
        kind = head & 15
        if kind not in _NUMBERS and kind not in _WIDTH:
            self._things_left -= count
            if self._things_left < 0:
                raise TooMany("there are more descriptions than are read")
        return count, kind

    def skip(self, kind: int, depth: int = _DEPTH_MAX) -> None:
        """Pass over a field's value."""
        if kind not in (TRUE, FALSE):
            self._skip_element(kind, depth)

    def _skip_element(self, kind: int, depth: int) -> None:
        if depth == 0:
            raise Malformed("structures lie too deep in each other")
        if kind in _NUMBERS:
            self._unsigned()
        elif kind in _WIDTH:
            self._move(_WIDTH[kind])
        elif kind == BINARY:
            self._move(self._unsigned() & 0xFFFFFFFF)
        elif kind == STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth - 1)
        elif kind in (LIST, _SET):
            count, inner = self.elements()
            self._skip_elements(count, inner, depth)
        elif kind == _MAP:
            self._skip_map(depth)
        else:
            raise Malformed(f"there is no type {kind}")

    def _skip_elements(self, count: int, kind: int, depth: int) -> None:
        if kind in _WIDTH:
            self._move(count * _WIDTH[kind])
            return
        for _ in range(count):
            self._skip_element(kind, depth - 1)

    def _skip_map(self, depth: int) -> None:
        count = self._unsigned() & 0xFFFFFFFF
        kinds = self._byte() if count else 0
        for _ in range(count):
            self._skip_element(kinds >> 4, depth - 1)
            self._skip_element(kinds & 15, depth - 1)

    def _move(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise IndexError("a value ends behind the bytes")

    def _byte(self) -> int:
        found = self._data[self.at]
        self.at += 1
        return found

    def _unsigned(self) -> int:
        found = shift = 0
        while True:
            one = self._data[self.at]
            self.at += 1
            found |= (one & 127) << shift
            if one < 128:  # noqa: PLR2004 - the high bit says that more follows
                return found
            shift += 7
            if shift >= 7 * _VARINT_BYTES_MAX:
                raise Malformed("a number has too many digits")


def _short(found: int) -> int:
    """Wrap a number as 16 bits do."""
    return (found + 0x8000 & 0xFFFF) - 0x8000
