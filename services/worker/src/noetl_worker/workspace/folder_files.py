"""Folders of which tasks have the use: no link in them is followed, also when one is put there."""

import os
import stat
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path

from noetl_contracts.execution_files import (
    INTERNAL_FOLDER,
    FileContent,
    choose_chunk_bytes,
    digest_chunk,
)
from noetl_worker.domain.failures import ToolFailure, build_error

_CACHE_FOLDER = "__pycache__"
_FOLDERS_DEEP_MAX = 32
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def open_folder(name: str | Path, within: int | None = None) -> Iterator[int]:
    """Hold a folder open; raises `OSError` for a link."""
    descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_parent(top: Path, path: str, *, is_made: bool = False) -> Iterator[tuple[int, str]]:
    """Hold the folder of a file below `top` open, and give the file's own name.

    Folders on the way are made where `is_made`; what stands in their way is removed then.
    """
    *folders, name = path.split("/")
    descriptor = os.open(top, _FOLDER_FLAGS)
    try:
        for folder in folders:
            if is_made:
                _make_folder(folder, descriptor)
            inner = os.open(folder, _FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, name
    finally:
        os.close(descriptor)


def _make_folder(name: str, within: int) -> None:
    status = find_status(name, within)
    if status is not None and stat.S_ISDIR(status.st_mode):
        return
    # Files are fetched beside each other, and another one may need the same folder.
    if status is not None:
        with suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(name, dir_fd=within)
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=within)


def find_status(name: str, within: int) -> os.stat_result | None:
    """Return what is known of a name in a folder, None where there is nothing."""
    try:
        return os.lstat(name, dir_fd=within)
    except FileNotFoundError:
        return None


def remove_entry(name: str, within: int) -> bool:
    """Remove a file, or a folder with all that is in it; tell whether it was a folder."""
    status = find_status(name, within)
    if status is None:
        return False
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=within)
        return False
    with open_folder(name, within) as inner:
        remove_unknown(inner, known_paths=frozenset())
    os.rmdir(name, dir_fd=within)
    return True


def list_parent_folders(path: str) -> list[str]:
    """Return the parent folders in a relative path, the outermost first; reads no disk."""
    return [path[:index] for index, character in enumerate(path) if character == "/"]


def iterate_files(
    folder: int, internal_paths: AbstractSet[str], *, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, int]]:
    """Yield the path and an open descriptor of each file; raises `ToolFailure` for what is none."""
    if depth > _FOLDERS_DEEP_MAX:
        raise _build_file_failure(prefix, f"lies more than {_FOLDERS_DEEP_MAX} folders deep")
    for name in sorted(os.listdir(folder)):
        path = f"{prefix}{name}"
        mode = os.lstat(name, dir_fd=folder).st_mode
        if stat.S_ISDIR(mode):
            # Compiled modules are made again when they are imported.
            if name != _CACHE_FOLDER:
                with open_folder(name, folder) as inner:
                    yield from iterate_files(
                        inner, internal_paths, prefix=f"{path}/", depth=depth + 1
                    )
            continue
        if not stat.S_ISREG(mode):
            raise _build_file_failure(
                path, "is a link or a device, and only files and folders are kept"
            )
        _check_name(path)
        if is_internal(path) and path not in internal_paths:
            raise _build_file_failure(
                path, f"lies in the folder '{INTERNAL_FOLDER}', which is the engine's"
            )
        with _open_file(name, folder) as file:
            yield path, file


def remove_unknown(
    folder: int, *, known_paths: AbstractSet[str], prefix: str = "", depth: int = 0
) -> None:
    """Remove every file that is not known, and folders that are empty then; raises `OSError`."""
    if depth > _FOLDERS_DEEP_MAX:
        raise OSError(f"more than {_FOLDERS_DEEP_MAX} folders lie in each other")
    for name in os.listdir(folder):
        path = f"{prefix}{name}"
        if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            if path not in known_paths:
                os.unlink(name, dir_fd=folder)
            continue
        with open_folder(name, folder) as inner:
            # A task may have taken its right to write away.
            os.fchmod(inner, 0o700)
            remove_unknown(inner, known_paths=known_paths, prefix=f"{path}/", depth=depth + 1)
            is_empty = not os.listdir(inner)  # noqa: PTH208 - by descriptor
        if is_empty:
            os.rmdir(name, dir_fd=folder)


def is_internal(path: str) -> bool:
    """Tell whether a path is that of one of the engine's own files."""
    return path == INTERNAL_FOLDER or path.startswith(f"{INTERNAL_FOLDER}/")


@contextmanager
def _open_file(name: str, within: int) -> Iterator[int]:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as problem:
        raise _build_file_failure(path, "has a name that is no UTF-8 text") from problem


def _build_file_failure(path: str, reason: str) -> ToolFailure:
    text = f"the file {path!r:.200} {reason}: remove it before the task ends"
    return ToolFailure(build_error("config", text, source="files"))


def describe_content(descriptor: int) -> FileContent:
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
    return _read_fully(descriptor, content.get_chunk_size(index), index * content.chunk_bytes)


def write_chunk(descriptor: int, content: FileContent, index: int, data: bytes) -> None:
    """Write one chunk at its place in an open file; this blocks."""
    view, offset = memoryview(data), index * content.chunk_bytes
    while view:
        written_bytes = os.pwrite(descriptor, view, offset)
        view, offset = view[written_bytes:], offset + written_bytes


def finish_open_file(descriptor: int, content: FileContent) -> None:
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
