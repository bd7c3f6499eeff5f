"""Tables of flatbuffers, in which Arrow's streams describe themselves, read where they lie."""

import struct
from collections.abc import Iterator

from noetl_storage.unpacking.refusals import Malformed

_REFERENCE_BYTES = 4


class Table:
    """A table in bytes; what is absent reads as zero, none or empty. Raises `Malformed`.

    Several tables may share what they refer to: whoever walks them all counts it each time.
    """

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    @classmethod
    def root(cls, data: bytes) -> "Table":
        """Return the table that all others hang on."""
        return cls(data, _number(data, 0, "<I"))

    def number(self, slot: int, form: str) -> int:
        """Return a number; `form` is its form in `struct`."""
        at = self._place(slot)
        return 0 if at is None else _number(self._data, at, form)

    def table(self, slot: int) -> "Table | None":
        """Return a table that this one refers to."""
        at = self._referred(slot)
        return None if at is None else Table(self._data, at)

    def length(self, slot: int) -> int:
        """Return the length of a text or list, in bytes or elements."""
        at = self._referred(slot)
        return 0 if at is None else _number(self._data, at, "<I")

    def tables(self, slot: int) -> Iterator["Table"]:
        """Yield the tables of a list."""
        at = self._referred(slot)
        for index in range(self.length(slot)):
            assert at is not None, "what is absent has no length"
            place = at + _REFERENCE_BYTES * (index + 1)
            yield Table(self._data, place + _number(self._data, place, "<I"))

    def numbers(self, slot: int, each: int) -> tuple[int, ...]:
        """Return a list of structures of so many long numbers, laid side by side."""
        at = self._referred(slot)
        if at is None:
            return ()
        count = _number(self._data, at, "<I") * each
        if at + _REFERENCE_BYTES + 8 * count > len(self._data):
            raise Malformed("a list ends behind its message")
        return struct.unpack_from(f"<{count}q", self._data, at + _REFERENCE_BYTES)

    def _referred(self, slot: int) -> int | None:
        at = self._place(slot)
        return None if at is None else at + _number(self._data, at, "<I")

    def _place(self, slot: int) -> int | None:
        fields = self._at - _number(self._data, self._at, "<i")
        place = 4 + 2 * slot
        if place >= _number(self._data, fields, "<H"):
            return None
        distance = _number(self._data, fields + place, "<H")
        return self._at + distance if distance else None


def _number(data: bytes, at: int, form: str) -> int:
    if at < 0:
        raise Malformed("a description points before its message")
    try:
        found: int = struct.unpack_from(form, data, at)[0]
    except struct.error as failure:
        raise Malformed("a description points behind its message") from failure
    return found
