"""Texts whose length the headers of their pages do not tell, as they refer to texts elsewhere."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from noetl_storage.unpacking import byte_arrays
from noetl_storage.unpacking.parquet_leaves import Leaf
from noetl_storage.unpacking.parquet_pages import Column, Page, body_of

_LENGTH_BYTES = 4
_WORDS_MAX = 1_000_000


class Referring(Struct, kw_only=True):
    """Pages of a leaf in one row group whose values refer to texts of a dictionary."""

    column: Column
    dictionary: Page
    pages: list[Page]
    longest: int = 0

    def __post_init__(self) -> None:
        # No text is longer than all of them without their lengths.
        lengths = _LENGTH_BYTES * self.dictionary.values
        self.longest = max(0, self.dictionary.unpacked_bytes - lengths)

    @property
    def most(self) -> int:
        """Return what the texts take at most."""
        return self.longest * sum(page.values for page in self.pages)

    def look(self, source: Any) -> None:
        """Find out how long the longest text is."""
        if self.dictionary.values <= _WORDS_MAX:
            self.longest = max(self._lengths(source), default=0)

    def sizes(self, source: Any, leaf: Leaf) -> Iterator[int]:
        """Yield what the texts of each page take; raises `Malformed`."""
        if self.dictionary.values > _WORDS_MAX:
            yield self.most
            return
        lengths = self._lengths(source)
        for page in self.pages:
            body = body_of(source, self.column, page)
            at = _values_at(body, page, leaf)
            yield byte_arrays.referred_bytes(body, at, lengths, page.values)

    def _lengths(self, source: Any) -> list[int]:
        body = body_of(source, self.column, self.dictionary)
        return byte_arrays.lengths_of(body, self.dictionary.values)


class Sharing(Struct, frozen=True, kw_only=True):
    """A page whose texts are kept as what they share with the one before, and the rest."""

    column: Column
    page: Page

    @property
    def longest(self) -> int:
        """Return how long a text is at most: all rests together."""
        return self.page.unpacked_bytes

    @property
    def most(self) -> int:
        """Return what the texts take at most."""
        return self.page.values * self.longest

    def look(self, source: Any) -> None:
        """Find out nothing: the page would have to be read."""

    def sizes(self, source: Any, leaf: Leaf) -> Iterator[int]:
        """Yield what the texts take; raises `Malformed`."""
        body = body_of(source, self.column, self.page)
        yield byte_arrays.shared_bytes(body, _values_at(body, self.page, leaf), self.page.values)


def _values_at(body: bytes, page: Page, leaf: Leaf) -> int:
    return byte_arrays.values_at(body, page, is_absent=leaf.is_absent, is_repeated=leaf.lists > 0)
