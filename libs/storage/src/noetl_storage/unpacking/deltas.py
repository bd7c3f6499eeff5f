"""Numbers that a page of Parquet keeps as the differences between them, block by block."""

from collections.abc import Iterator

from noetl_storage.unpacking.refusals import Malformed

# Writers use 128.
_BLOCK_VALUES_MAX = 8192


class Lengths:
    """Lengths in bytes, read one by one and never held: a few bytes tell of millions.

    Once they are read, `end` is where they end. Raises `Malformed`.
    """

    def __init__(self, data: bytes, at: int, *, count_max: int) -> None:
        self._data = data
        try:
            self._block, at = unsigned(data, at)
            self._parts, at = unsigned(data, at)
            self.count, at = unsigned(data, at)
            first, self._at = unsigned(data, at)
        except IndexError as failure:
            raise _cut() from failure
        self._first = _signed(first)
        self.end = self._at
        is_sound = 0 < self._parts <= self._block <= _BLOCK_VALUES_MAX
        if not is_sound or self._block % self._parts or self.count > count_max:
            raise Malformed("the lengths of the texts in a page are not written as they should be")

    def __iter__(self) -> Iterator[int]:
        """Yield the lengths from the first one on."""
        at, left, last = self._at, self.count - 1, self._first
        if self.count:
            yield _checked(last)
        try:
            while left > 0:
                least, at = unsigned(self._data, at)
                widths, at = self._data[at : at + self._parts], at + self._parts
                for part in range(self._parts):
                    width = widths[part]
                    if left <= 0:
                        break
                    packed, at = self._packed(at, width)
                    for step in _steps(packed, width, min(left, self._block // self._parts)):
                        last = (last + _signed(least) + step + 0x80000000 & 0xFFFFFFFF) - 0x80000000
                        yield _checked(last)
                    left -= self._block // self._parts
        except IndexError as failure:
            raise _cut() from failure
        self.end = at

    def _packed(self, at: int, width: int) -> tuple[int, int]:
        end = at + self._block // self._parts * width // 8
        if end > len(self._data):
            raise IndexError("a block is cut off")
        return int.from_bytes(self._data[at:end], "little"), end


def unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, and return it with where it ends."""
    found = shift = 0
    while True:
        one = data[at]
        at += 1
        found |= (one & 127) << shift
        if one < 128:  # noqa: PLR2004 - the high bit says that more follows
            return found, at
        shift += 7


def _steps(packed: int, width: int, count: int) -> Iterator[int]:
    mask = (1 << width) - 1
    for _ in range(count):
        yield packed & mask
        packed >>= width


def _signed(found: int) -> int:
    return (found >> 1) ^ -(found & 1)


def _checked(length: int) -> int:
    if length < 0:
        raise Malformed("a text in a page is shorter than nothing")
    return length


def _cut() -> Malformed:
    return Malformed("a page ends within the lengths of its texts")
