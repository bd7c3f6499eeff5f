"""Yields the bytes of a compressed payload in pieces, so that digests in its texts are found.

The texts of a table are whole in their pieces, and what it refers to often comes once, where it
stands; other bytes are cut anywhere, so a search must let the pieces overlap. A table's numbers are
left out.
"""

import tempfile
from collections.abc import Iterator
from itertools import chain
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet

from noetl_storage.ports.errors import StorageUnavailable
from noetl_storage.size_limits import ipc_messages, parquet_footer, parquet_texts
from noetl_storage.size_limits.bounded_tables import ARROW, BROKEN, PACKINGS, PARQUET
from noetl_storage.size_limits.ipc_messages import SCHEMA, IpcBuffer, IpcMessage
from noetl_storage.size_limits.parquet_pages import (
    BY_DICTIONARY,
    DELTA_TEXTS,
    DICTIONARY,
    SPLIT,
    ColumnChunk,
    ParquetPage,
    find_column_chunk,
    iterate_pages,
    read_page_body,
)
from noetl_storage.size_limits.refusals import (
    MalformedBytes,
    PayloadTooLarge,
    PayloadUnreadable,
    build_too_large_error,
)

_BUFFER_PACKINGS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_MAGIC_BYTES = 4
_PIECE_BYTES = 4 * 1024 * 1024
_PAGE_BYTES_MAX = 128 * 1024 * 1024
# A table that was packed as a whole lies on disk while it is read.
_LAID_BYTES_MAX = 1024 * 1024 * 1024
_IN_MEMORY_BYTES = 8 * 1024 * 1024
# No text packs so well, and none so long is looked through: others wait for it.
_TEXT_BYTES_MIN, _TEXT_RATIO = 4 * 1024 * 1024 * 1024, 200
# Such texts are rebuilt one by one, however few bytes they take.
_SHARING_MAX = 256 * 1024 * 1024
_TEXTS = frozenset({"BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"})


def iterate_texts(file: IO[bytes], *, overlap: int) -> Iterator[bytes]:
    """Yield everything that a packed payload says; what is damaged comes as it is.

    Raises `PayloadUnreadable` for what cannot be told within bounds. Of texts that are kept as
    what they share with the one before, so much comes again as a whole as `overlap` says.
    """
    source = pa.PythonFile(file, mode="r")
    size_max = max(_TEXT_BYTES_MIN, _TEXT_RATIO * source.size())
    size = 0
    for text in _iterate_all_texts(source, overlap):
        size += len(text)
        if size > size_max:
            raise build_too_large_error("a payload's text", size, size_max)
        yield text


def _iterate_all_texts(source: Any, overlap: int) -> Iterator[bytes]:
    try:
        head = source.read_at(_MAGIC_BYTES, 0)
        compression = next(
            (compression for magic, compression in PACKINGS if head.startswith(magic)), None
        )
        if compression is not None:
            yield from _iterate_packed_texts(source, compression, overlap)
        else:
            yield from _iterate_table_texts(source, head, overlap)
    except pa.ArrowMemoryError:
        raise
    except BROKEN:
        # What only looks packed is nobody's result.
        yield from _read_in_pieces(source, 0, source.size())


def _iterate_packed_texts(source: Any, compression: str, overlap: int) -> Iterator[bytes]:
    stream = pa.CompressedInputStream(source.get_stream(0, source.size()), compression)
    first = stream.read(_PIECE_BYTES)
    later_pieces = iter(lambda: stream.read(_PIECE_BYTES), b"")
    if not first.startswith((PARQUET, ARROW)):
        yield first
        yield from later_pieces
        return
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as spool_file:
        size = 0
        for piece in chain((first,), later_pieces):
            size += len(piece)
            if size > _LAID_BYTES_MAX:
                raise build_too_large_error("a packed table", size, _LAID_BYTES_MAX)
            write_spooled(spool_file, piece)
        yield from _iterate_all_texts(pa.PythonFile(spool_file, mode="r"), overlap)


def write_spooled(file: IO[bytes], piece: bytes) -> None:
    """Write to a temporary file; raises `StorageUnavailable`."""
    try:
        file.write(piece)
    except OSError as failure:
        raise StorageUnavailable(
            f"a payload cannot be laid aside to be looked through: {failure}. Give the folder "
            "that TMPDIR names more room"
        ) from failure


def _iterate_table_texts(source: Any, head: bytes, overlap: int) -> Iterator[bytes]:
    if head == PARQUET:
        yield from _iterate_parquet_texts(source, overlap)
    elif head == ARROW:
        for message in ipc_messages.iterate_messages(source):
            yield message.metadata
            yield from _iterate_message_texts(source, message)
    else:
        raise MalformedBytes("it is no table")


def _iterate_message_texts(source: Any, message: IpcMessage) -> Iterator[bytes]:
    if message.kind == SCHEMA or not ipc_messages.has_packed_buffers(message):
        yield from _read_in_pieces(source, message.at, message.body_bytes)
        return
    buffers = list(ipc_messages.iterate_buffers(source, message))
    size = sum(buffer.size for buffer in buffers)
    if size > message.body_bytes:
        raise PayloadTooLarge("buffers of an Arrow stream lie in each other: write it anew")
    for buffer in buffers:
        yield from _iterate_buffer_texts(source, buffer)


def _iterate_buffer_texts(source: Any, buffer: IpcBuffer) -> Iterator[bytes]:
    if buffer.unpacked_bytes is None:
        yield from _read_in_pieces(source, buffer.at, buffer.size)
        return
    compression = _BUFFER_PACKINGS.get(source.read_at(_MAGIC_BYTES, buffer.at))
    if compression is None:
        raise MalformedBytes("a buffer of an Arrow stream is packed in an unknown way")
    part = source.get_stream(buffer.at, buffer.size)
    stream = pa.CompressedInputStream(part, compression)
    yield from iter(lambda: stream.read(_PIECE_BYTES), b"")


def _iterate_parquet_texts(source: Any, overlap: int) -> Iterator[bytes]:
    yield parquet_footer.read_footer(source)
    parquet_footer.check_footer_size(source, bytes_max=_PAGE_BYTES_MAX)
    columns = _ColumnTexts(source, pyarrow.parquet.ParquetFile(source), overlap=overlap)
    try:
        yield from columns
    except pa.ArrowMemoryError:
        raise
    except BROKEN as failure:
        # Its columns are known, so it is a table, and other readers may be able to read it.
        text = f"a column of a Parquet file cannot be looked through: {failure}"
        raise PayloadUnreadable(text) from failure


class _ColumnTexts:
    """The texts of a Parquet file's columns."""

    def __init__(self, source: Any, file: Any, *, overlap: int) -> None:
        self._source = source
        self._source_bytes = source.size()
        self._file = file
        self._overlap = overlap
        self._packed_bytes = 0
        self._sharing = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield them page by page; raises `PayloadTooLarge`, `MalformedBytes`."""
        for index in range(len(self._file.schema.names)):
            leaf = self._file.schema.column(index)
            if leaf.physical_type not in _TEXTS:
                continue
            for group in range(self._file.num_row_groups):
                about = self._file.metadata.row_group(group).column(index)
                self._packed_bytes += about.total_compressed_size
                if self._packed_bytes > self._source_bytes:
                    raise MalformedBytes("columns of a Parquet file lie in each other")
                yield from self._iterate_column_texts(
                    leaf, find_column_chunk(about, self._source_bytes)
                )

    def _iterate_column_texts(self, leaf: Any, column: ColumnChunk) -> Iterator[bytes]:
        for page in iterate_pages(self._source, column):
            # What refers to a dictionary has no texts of its own.
            if page.kind != DICTIONARY and page.encoding in BY_DICTIONARY:
                continue
            size = max(page.packed_bytes, page.unpacked_bytes)
            if size > _PAGE_BYTES_MAX:
                raise build_too_large_error("a page of a Parquet file", size, _PAGE_BYTES_MAX)
            body = read_page_body(self._source, column, page)
            if page.encoding in (DELTA_TEXTS, SPLIT):
                yield from self._rebuild_page_texts(leaf, page, body)
            else:
                yield body

    def _rebuild_page_texts(self, leaf: Any, page: ParquetPage, body: bytes) -> Iterator[bytes]:
        at = parquet_texts.find_values_start(
            body,
            page,
            is_absent=leaf.max_definition_level > 0,
            is_repeated=leaf.max_repetition_level > 0,
        )
        if page.encoding == SPLIT:
            yield parquet_texts.join_split_values(body[at:], leaf.length)
            return
        self._sharing += page.values
        if self._sharing > _SHARING_MAX:
            raise PayloadTooLarge(
                f"a Parquet file has more than {_SHARING_MAX} texts that share their beginnings: "
                "write it with another encoding than DELTA_BYTE_ARRAY"
            )
        yield from parquet_texts.rebuild_shared_texts(body, at, page.values, overlap=self._overlap)


def _read_in_pieces(source: Any, at: int, size: int) -> Iterator[bytes]:
    for start in range(at, at + size, _PIECE_BYTES):
        yield source.read_at(min(_PIECE_BYTES, at + size - start), start)
