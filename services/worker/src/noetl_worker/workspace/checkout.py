"""A local folder with files of an execution, in which a task reads and writes them.

What a task changed is told by size, times and identity of each file. The time of a file that lies
here is set into the past, so that the next write always changes it. The time of the last change
of any kind, which no task can set, tells of a write whose time was set back.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from noetl_contracts.execution_files import FileContent
from noetl_storage.process import removal
from noetl_worker.workspace.folder_files import (
    describe_content,
    find_status,
    finish_open_file,
    is_internal,
    iterate_files,
    list_parent_folders,
    open_folder,
    open_parent,
    remove_entry,
    remove_unknown,
)

_REMOVAL_S = 60.0
_AGE_NS = 10_000_000_111


class Signature(Struct, frozen=True):
    """What changes with each write to a file."""

    size_bytes: int
    modified_ns: int
    changed_ns: int
    inode: int


class PresentFile(Struct, frozen=True, kw_only=True):
    """A file as it was put here."""

    content: FileContent
    signature: Signature


class WorkspaceLimits(Struct, frozen=True, kw_only=True):
    """How many files an execution keeps, and how large they are together.

    What a task changed past that is not even read.
    """

    files_max: int = 10_000
    bytes_max: int = 64 * 1024**3


class FolderChanges(Struct, frozen=True, kw_only=True):
    """Which files differ from what was put here: new contents by path, and paths that are gone.

    `signatures` are those of the files as they were read. What `is_too_much` is left out.
    """

    contents: dict[str, FileContent]
    removed: tuple[str, ...]
    signatures: dict[str, Signature]
    is_too_much: bool = False


class Checkout:
    """One folder; its methods block and are used by one task at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._present_files: dict[str, PresentFile] = {}
        # Paths of the engine's own files that the task at hand uses.
        self.internal_paths: set[str] = set()

    @property
    def file_paths(self) -> set[str]:
        """Return the paths of the files that were put here."""
        return set(self._present_files)

    @property
    def is_bare(self) -> bool:
        """Tell whether nothing was put here, and nothing lies here."""
        if self._present_files:
            return False
        try:
            with os.scandir(self.folder) as entries:
                return next(entries, None) is None
        except OSError:
            # The reader of the changes says what is wrong with the folder.
            return False

    def find_base(self, path: str) -> FileContent | None:
        """Return the content of a file as it was put here, None when it was not."""
        present_file = self._present_files.get(path)
        return None if present_file is None else present_file.content

    def list_outdated(self, contents: Mapping[str, FileContent]) -> list[str]:
        """Return those paths whose files do not lie here unchanged with these contents."""
        return [path for path, content in contents.items() if not self._is_current(path, content)]

    def list_reusable_chunks(self, path: str, content: FileContent) -> set[int]:
        """Return the chunks of a content that the file here has already."""
        present_file = self._present_files.get(path)
        if present_file is None or present_file.content.chunk_bytes != content.chunk_bytes:
            return set()
        if not self._is_intact(path):
            return set()
        pairs = zip(present_file.content.chunks, content.chunks, strict=False)
        return {
            index
            for index, (present_chunk, content_chunk) in enumerate(pairs)
            if present_chunk == content_chunk
        }

    def begin_file(self, path: str, *, is_reused: bool) -> int:
        """Open a file whose chunks are to be written; unless it is reused, it is a new one.

        A file or a folder of another version that stands in its place is removed.
        """
        for place in (path, *list_parent_folders(path)):
            self._present_files.pop(place, None)
        with open_parent(self.folder, path, is_made=True) as (parent, name):
            if not is_reused and remove_entry(name, parent):
                self._forget_below(path)
            return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=parent)

    def finish_file(self, path: str, content: FileContent, descriptor: int) -> None:
        """Note a file whose chunks are all written."""
        finish_open_file(descriptor, content)
        self._note_file(path, content, descriptor)

    @contextmanager
    def open_file(self, path: str) -> Iterator[int]:
        """Hold a file open for reading; raises `OSError`."""
        with open_parent(self.folder, path) as (parent, name):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(name, flags, dir_fd=parent)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files that the task's version of the files does not have."""
        for path in paths:
            self._present_files.pop(path, None)
            try:
                with open_parent(self.folder, path) as (parent, name):
                    if remove_entry(name, parent):
                        self._forget_below(path)
            except (FileNotFoundError, NotADirectoryError):
                continue

    def read_changes(self, limits: WorkspaceLimits) -> FolderChanges:
        """Compare the folder with what was put here; raises `ToolFailure` for what is no file."""
        contents: dict[str, FileContent] = {}
        signatures: dict[str, Signature] = {}
        paths: set[str] = set()
        size_bytes = 0
        for path, descriptor in self._open_files():
            paths.add(path)
            present_file = self._present_files.get(path)
            signature = _build_signature(os.fstat(descriptor))
            if present_file is not None and present_file.signature == signature:
                continue
            size_bytes += signature.size_bytes
            if len(contents) >= limits.files_max or size_bytes > limits.bytes_max:
                return FolderChanges(contents={}, removed=(), signatures={}, is_too_much=True)
            content = describe_content(descriptor)
            if present_file is not None and present_file.content == content:
                # Written once more as it was, or only touched.
                if _build_signature(os.fstat(descriptor)) == signature:
                    self._note_file(path, content, descriptor)
                continue
            contents[path], signatures[path] = content, signature
        removed_paths = tuple(path for path in self._present_files if path not in paths)
        return FolderChanges(contents=contents, removed=removed_paths, signatures=signatures)

    def accept_changes(self, changes: FolderChanges) -> None:
        """Take what a task changed as what lies here; a file written to since then is dropped."""
        for path in (*changes.contents, *changes.removed):
            self._present_files.pop(path, None)
        for path, content in changes.contents.items():
            try:
                with self.open_file(path) as descriptor:
                    if _build_signature(os.fstat(descriptor)) == changes.signatures[path]:
                        self._note_file(path, content, descriptor)
            except OSError:
                # It is fetched when it is wanted.
                continue

    def drop_changes(self) -> None:
        """Remove what a task changed; it is put here again when it is wanted."""
        for path in list(self._present_files):
            if not self._is_intact(path):
                self._present_files.pop(path)
        with open_folder(self.folder) as top:
            remove_unknown(top, known_paths=self._present_files.keys())

    def clear_files(self) -> None:
        """Remove every file, so that those of another execution may lie here."""
        self._present_files.clear()
        self.internal_paths = set()
        self.drop_changes()

    def remove_all(self) -> bool:
        """Remove the folder; tell whether it is gone."""
        self._present_files.clear()
        return removal.remove_folder(self.folder, within_s=_REMOVAL_S)

    def _forget_below(self, path: str) -> None:
        for inner in [item for item in self._present_files if item.startswith(f"{path}/")]:
            self._present_files.pop(inner)

    def _note_file(self, path: str, content: FileContent, descriptor: int) -> None:
        if os.fstat(descriptor).st_nlink > 1:
            # What is written to one of its names would change the others: it is fetched again.
            self._present_files.pop(path, None)
            return
        # Of the rights of a file only that to be executed is kept.
        os.fchmod(descriptor, 0o700 if content.is_executable else 0o600)
        past_ns = os.fstat(descriptor).st_mtime_ns - _AGE_NS
        os.utime(descriptor, ns=(past_ns, past_ns))
        self._present_files[path] = PresentFile(
            content=content, signature=_build_signature(os.fstat(descriptor))
        )

    def _is_current(self, path: str, content: FileContent) -> bool:
        present_file = self._present_files.get(path)
        return (
            present_file is not None and present_file.content == content and self._is_intact(path)
        )

    def _is_intact(self, path: str) -> bool:
        try:
            with open_parent(self.folder, path) as (parent, name):
                status = find_status(name, parent)
        except OSError:
            return False
        if status is None or not stat.S_ISREG(status.st_mode):
            return False
        return _build_signature(status) == self._present_files[path].signature

    def _open_files(self) -> Iterator[tuple[str, int]]:
        """Yield each file's path with an open descriptor; no link is followed."""
        internal_paths = self.internal_paths | {
            path for path in self._present_files if is_internal(path)
        }
        with open_folder(self.folder) as top:
            yield from iterate_files(top, internal_paths)


def _build_signature(status: os.stat_result) -> Signature:
    return Signature(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
