"""Open files as contents in chunks: read, described and written."""

import os
from collections.abc import Iterator

from noetl_contracts.execution_files import FileContent, choose_chunk_bytes, digest_chunk


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
