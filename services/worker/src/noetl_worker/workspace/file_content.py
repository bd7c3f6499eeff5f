"""The content of a file, cut into chunks that are stored by digest.

A file that changes in one place shares its other chunks with the version before. So a database of
1 GB into which a task inserts a row costs the store a few chunks and not 1 GB.
"""

import os
from collections.abc import Iterator

from msgspec import Struct

from noetl_contracts import codec

CHUNK_BYTES_MIN = 256 * 1024
# A longer file has larger chunks, so that the list of its chunks stays short.
CHUNKS_MAX = 1024
# Stands before each stored chunk: a piece of a Parquet file alone must not look like one.
CHUNK_HEAD = b"noetl-file-chunk\n"


class FileContent(Struct, frozen=True, kw_only=True):
    """The size of a file in bytes, the size of its chunks, and the digest of each, in order.

    The digest of a chunk is the SHA-256 of `CHUNK_HEAD` and the chunk's bytes, as they are stored.
    """

    size_bytes: int
    chunk_bytes: int
    chunks: tuple[str, ...]
    is_executable: bool = False

    def chunk_size(self, index: int) -> int:
        """Return how many bytes a chunk has; the last one may be shorter."""
        return min(self.chunk_bytes, self.size_bytes - index * self.chunk_bytes)


def choose_chunk_bytes(size_bytes: int) -> int:
    """Return the smallest power of two that cuts a file into at most `CHUNKS_MAX` chunks."""
    chunk_bytes = CHUNK_BYTES_MIN
    while chunk_bytes * CHUNKS_MAX < size_bytes:
        chunk_bytes *= 2
    return chunk_bytes


def read_content(descriptor: int) -> FileContent:
    """Read an open file from its beginning and describe its content; this blocks."""
    status = os.fstat(descriptor)
    chunk_bytes = choose_chunk_bytes(status.st_size)
    chunks: list[str] = []
    size_bytes = 0
    for data in _read_chunks(descriptor, chunk_bytes):
        chunks.append(digest_chunk(data))
        size_bytes += len(data)
    return FileContent(
        size_bytes=size_bytes,
        chunk_bytes=chunk_bytes,
        chunks=tuple(chunks),
        is_executable=bool(status.st_mode & 0o100),
    )


def digest_chunk(data: bytes) -> str:
    """Return the SHA-256 of a chunk as it is stored."""
    digest = codec.digester()
    digest.update(CHUNK_HEAD)
    digest.update(data)
    return digest.hexdigest()


def read_chunk(descriptor: int, content: FileContent, index: int) -> bytes:
    """Read one chunk of an open file; this blocks."""
    return _read_fully(descriptor, content.chunk_size(index), index * content.chunk_bytes)


def write_chunk(descriptor: int, content: FileContent, index: int, data: bytes) -> None:
    """Write one chunk at its place in an open file; this blocks."""
    view, offset = memoryview(data), index * content.chunk_bytes
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def finish_file(descriptor: int, content: FileContent) -> None:
    """Give an open file whose chunks are written its length and its mode; this blocks."""
    os.ftruncate(descriptor, content.size_bytes)
    os.fchmod(descriptor, 0o700 if content.is_executable else 0o600)


def _read_chunks(descriptor: int, chunk_bytes: int) -> Iterator[bytes]:
    offset = 0
    while data := _read_fully(descriptor, chunk_bytes, offset):
        yield data
        offset += len(data)


def _read_fully(descriptor: int, size: int, offset: int) -> bytes:
    """Read so many bytes, fewer only at the end of the file."""
    parts: list[bytes] = []
    while size > 0 and (data := os.pread(descriptor, size, offset)):
        parts.append(data)
        size -= len(data)
        offset += len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)
