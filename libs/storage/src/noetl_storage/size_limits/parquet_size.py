"""What a Parquet file takes as a table, counted before the table is built.

Values of one width take their number times it. Texts take what their pages hold; but a page may
refer to one long text any number of times, and how often only shows as it is read: such leaves
are read once by few rows, and what they come to is added up until it passes the bound.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from noetl_storage.size_limits.parquet_footer import ColumnLeaf, list_leaves
from noetl_storage.size_limits.parquet_pages import (
    BY_DICTIONARY,
    DELTA_TEXTS,
    DICTIONARY,
    ColumnChunk,
    ParquetPage,
    find_column_chunk,
    iterate_pages,
)
from noetl_storage.size_limits.parquet_texts import DictionaryTexts, SharedTexts
from noetl_storage.size_limits.refusals import (
    MalformedBytes,
    PayloadTooLarge,
    build_too_large_error,
)

# Unpacked pages, one of each leaf, that any reader may hold at a time.
_HELD_BYTES_MIN = 64 * 1024 * 1024
# So much is read at a time to be measured.
_MEASURED_BYTES = 16 * 1024 * 1024
_MEASURED_ROWS = 64 * 1024
# Each page takes time to look at, and nobody gains by small ones.
_PAGE_BYTES = 256
_PAGES_MIN = 100_000
_LENGTH_BYTES = 4
# Parquet's reader of a dictionary notes where each of its values is.
_PLACE_BYTES = 16


class LeafCount(Struct, kw_only=True):
    """What is known of a leaf: it takes at least this, and what those texts take."""

    leaf: ColumnLeaf
    least: int = 0
    texts: list[DictionaryTexts | SharedTexts] = []

    @property
    def count_uncertain_bytes(self) -> int:
        """Return what the leaf takes at most beyond the least."""
        return sum(text.total_bytes_max for text in self.texts)


def check_groups_size(file: Any, source: Any, groups: Iterable[int], *, bytes_max: int) -> None:
    """Refuse row groups that take more than a bound; raises `PayloadTooLarge`, `MalformedBytes`."""
    groups = list(groups)
    counting = _GroupCounter(file, source, bytes_max=bytes_max)
    for group in groups:
        counting.add_group(file.metadata.row_group(group))
    counting.settle_texts(groups)


class _GroupCounter:
    def __init__(self, file: Any, source: Any, *, bytes_max: int) -> None:
        self._file = file
        self._source = source
        self._source_bytes = source.size()
        self._bytes_max = bytes_max
        self._pages_left = max(_PAGES_MIN, bytes_max // _PAGE_BYTES)
        self._packed_bytes = self._size = 0
        self._counts = [LeafCount(leaf=leaf) for leaf in list_leaves(file)]

    def add_group(self, group: Any) -> None:
        """Count the pages of a row group."""
        page_bytes = 0
        for count in self._counts:
            about = group.column(count.leaf.index)
            self._packed_bytes += about.total_compressed_size
            if self._packed_bytes > self._source_bytes:
                raise MalformedBytes("columns of a Parquet file lie in each other")
            column = find_column_chunk(about, self._source_bytes)
            page_bytes += self._add_column(count, column, rows=group.num_rows)
        page_bytes_max = max(_HELD_BYTES_MIN, self._bytes_max)
        if page_bytes > page_bytes_max:
            raise build_too_large_error(
                "a page of each column of a Parquet file", page_bytes, page_bytes_max
            )

    def settle_texts(self, groups: list[int]) -> None:
        """Find out what the headers of pages do not tell, where it may pass the bound."""
        uncertain_counts = [count for count in self._counts if count.texts]
        if self._fits_bound(uncertain_counts):
            return
        for count in uncertain_counts:
            for texts in count.texts:
                texts.measure_longest(self._source)
        while not self._fits_bound(uncertain_counts):
            count = uncertain_counts.pop()
            other_bytes = self._size - count.least
            for size in self._measure_leaf(count, groups):
                self._set_checked_size(other_bytes + size)

    def _fits_bound(self, uncertain_counts: list[LeafCount]) -> bool:
        return (
            self._size + sum(count.count_uncertain_bytes for count in uncertain_counts)
            <= self._bytes_max
        )

    def _set_checked_size(self, size: int) -> None:
        self._size = size
        if size > self._bytes_max:
            raise build_too_large_error("a Parquet file", size, self._bytes_max)

    def _add_column(self, count: LeafCount, column: ColumnChunk, *, rows: int) -> int:
        """Count the pages of a leaf; return how many bytes a reader of it holds at a time."""
        dictionary: ParquetPage | None = None
        leaf, largest, values, own_bytes = count.leaf, 0, 0, 0
        referring: list[ParquetPage] = []
        for page in iterate_pages(self._source, column):
            self._count_page()
            if page.kind == DICTIONARY:
                if dictionary is not None:
                    raise MalformedBytes("a column of a Parquet file has two dictionaries")
                dictionary = page
                continue
            largest = max(largest, page.unpacked_bytes)
            values += page.values
            if page.encoding == DELTA_TEXTS:
                count.texts.append(SharedTexts(column=column, page=page))
            elif leaf.is_text and page.encoding in BY_DICTIONARY:
                referring.append(page)
            elif leaf.is_text:
                own_bytes += max(0, page.unpacked_bytes - _LENGTH_BYTES * page.values)
        if values < rows:
            raise MalformedBytes("a column of a Parquet file has fewer values than rows")
        words = 0 if dictionary is None else dictionary.unpacked_bytes
        places = 0 if dictionary is None else _PLACE_BYTES * dictionary.values
        if leaf.is_dictionary:
            own_bytes += words
        elif dictionary is not None and referring:
            dictionary_texts = DictionaryTexts(
                column=column, dictionary=dictionary, pages=referring
            )
            count.texts.append(dictionary_texts)
        count.least += (column_bytes := values * leaf.bits // 8 + own_bytes)
        self._set_checked_size(self._size + column_bytes)
        return words + places + largest

    def _count_page(self) -> None:
        self._pages_left -= 1
        if self._pages_left < 0:
            raise PayloadTooLarge("a Parquet file has very many pages: write it in larger ones")

    def _measure_leaf(self, count: LeafCount, groups: list[int]) -> Iterator[int]:
        """Yield what a leaf takes, as more and more of it is read."""
        if not count.leaf.lists:
            yield from self._measure_by_rows(count, groups)
            return
        # A row has any number of texts: they are counted as they are written.
        size = count.least
        for texts in count.texts:
            for text_bytes in texts.iterate_sizes(self._source, count.leaf):
                size += text_bytes
                yield size

    def _measure_by_rows(self, count: LeafCount, groups: list[int]) -> Iterator[int]:
        """Read so few rows at a time that the longest texts do no harm."""
        longest = max(1, *(texts.longest for texts in count.texts))
        rows = max(1, min(_MEASURED_ROWS, _MEASURED_BYTES // longest))
        size = 0
        for batch in self._file.reader.iter_batches(
            rows, row_groups=groups, column_indices=[count.leaf.index], use_threads=False
        ):
            size += batch.nbytes
            yield size
