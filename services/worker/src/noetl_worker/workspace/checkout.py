"""A local folder with files of an execution, in which a task reads and writes them.

What a task changed is told by size, time and identity of each file. The time of a file that lies
here is set into the past, so that the next write always changes it.
"""

import os
import stat
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from noetl_storage import removal
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.tools.file_names import INTERNAL_FOLDER
from noetl_worker.workspace.file_content import FileContent, finish_file, read_content

_CACHE_FOLDER = "__pycache__"
_FOLDERS_DEEP_MAX = 32
_REMOVAL_S = 60.0
_AGE_NS = 10_000_000_111


class Signature(Struct, frozen=True):
    """What changes with each write to a file."""

    size_bytes: int
    modified_ns: int
    inode: int


class PresentFile(Struct, frozen=True, kw_only=True):
    """A file as it was put here."""

    content: FileContent
    signature: Signature


class FolderChanges(Struct, frozen=True, kw_only=True):
    """Which files differ from what was put here: new contents by path, and paths that are gone."""

    contents: dict[str, FileContent]
    removed: tuple[str, ...]


class Checkout:
    """One folder; its methods block and are used by one task at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._present: dict[str, PresentFile] = {}
        # Paths of the engine's own files that the task at hand uses.
        self.internal_paths: set[str] = set()

    @property
    def paths(self) -> set[str]:
        """Return the paths of the files that were put here."""
        return set(self._present)

    @property
    def is_bare(self) -> bool:
        """Tell whether nothing was put here, and nothing lies here."""
        if self._present:
            return False
        try:
            with os.scandir(self.folder) as entries:
                return next(entries, None) is None
        except OSError:
            # Whoever reads the changes says what is wrong with the folder.
            return False

    def find_base(self, path: str) -> FileContent | None:
        """Return the content of a file as it was put here, None when it was not."""
        present = self._present.get(path)
        return None if present is None else present.content

    def is_current(self, path: str, content: FileContent) -> bool:
        """Tell whether a file lies here unchanged with this content."""
        present = self._present.get(path)
        return present is not None and present.content == content and self._is_intact(path)

    def list_reusable_chunks(self, path: str, content: FileContent) -> set[int]:
        """Return the chunks of a content that the file here has already."""
        present = self._present.get(path)
        if present is None or present.content.chunk_bytes != content.chunk_bytes:
            return set()
        if not self._is_intact(path):
            return set()
        pairs = zip(present.content.chunks, content.chunks, strict=False)
        return {index for index, (here, wanted) in enumerate(pairs) if here == wanted}

    def prepare_file(self, path: str, *, is_reused: bool) -> Path:
        """Return where the chunks of a file are written; unless it is reused, nothing is there."""
        self._present.pop(path, None)
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not is_reused:
            target.unlink(missing_ok=True)
        return target

    def finish_file(self, path: str, content: FileContent) -> None:
        """Note a file whose chunks are all written."""
        finish_file(self.folder / path, content)
        self._note_file(path, content)

    def remove_file(self, path: str) -> None:
        """Remove a file that a later version of the execution's files does not have."""
        self._present.pop(path, None)
        (self.folder / path).unlink(missing_ok=True)

    def read_changes(self) -> FolderChanges:
        """Compare the folder with what was put here; raises `ToolFailure` for what is no file."""
        contents: dict[str, FileContent] = {}
        seen: set[str] = set()
        for path, descriptor in self._open_files():
            seen.add(path)
            present = self._present.get(path)
            if present is not None and present.signature == _signature_of(descriptor):
                continue
            content = read_content(descriptor)
            if present is not None and present.content == content:
                self._note_file(path, content)
                continue
            contents[path] = content
        removed = tuple(path for path in self._present if path not in seen)
        return FolderChanges(contents=contents, removed=removed)

    def accept_changes(self, changes: FolderChanges) -> None:
        """Take what a task changed as what lies here."""
        for path, content in changes.contents.items():
            self._note_file(path, content)
        for path in changes.removed:
            self._present.pop(path, None)

    def drop_changes(self) -> None:
        """Remove what a task changed; it is put here again when it is wanted."""
        for path in list(self._present):
            if not self._is_intact(path):
                self._present.pop(path)
        with _opened_folder(self.folder) as top:
            _remove_unknown(top, "", set(self._present))

    def clear(self) -> None:
        """Remove every file, so that those of another execution may lie here."""
        self._present.clear()
        self.internal_paths = set()
        self.drop_changes()

    def remove_all(self) -> bool:
        """Remove the folder; tell whether it is gone."""
        self._present.clear()
        return removal.removed(self.folder, within_s=_REMOVAL_S)

    def _note_file(self, path: str, content: FileContent) -> None:
        target = self.folder / path
        past_ns = target.stat(follow_symlinks=False).st_mtime_ns - _AGE_NS
        os.utime(target, ns=(past_ns, past_ns), follow_symlinks=False)
        self._present[path] = PresentFile(
            content=content, signature=_signature(target.stat(follow_symlinks=False))
        )

    def _is_intact(self, path: str) -> bool:
        try:
            status = (self.folder / path).stat(follow_symlinks=False)
        except OSError:
            return False
        return _signature(status) == self._present[path].signature

    def _open_files(self) -> Iterator[tuple[str, int]]:
        """Yield each file's path with an open descriptor; no link is followed."""
        internal_paths = self.internal_paths | {path for path in self._present if is_internal(path)}
        with _opened_folder(self.folder) as top:
            yield from _files_below(top, "", internal_paths)


def is_internal(path: str) -> bool:
    """Tell whether a path is that of one of the engine's own files."""
    return path == INTERNAL_FOLDER or path.startswith(f"{INTERNAL_FOLDER}/")


def _files_below(
    folder: int, prefix: str, internal_paths: AbstractSet[str], depth: int = 0
) -> Iterator[tuple[str, int]]:
    if depth > _FOLDERS_DEEP_MAX:
        raise _refused(prefix, f"lies more than {_FOLDERS_DEEP_MAX} folders deep")
    for name in sorted(os.listdir(folder)):
        path = f"{prefix}{name}"
        mode = os.lstat(name, dir_fd=folder).st_mode
        if stat.S_ISDIR(mode):
            # Compiled modules are made again by whoever imports them.
            if name != _CACHE_FOLDER:
                with _opened_folder(name, folder) as inner:
                    yield from _files_below(inner, f"{path}/", internal_paths, depth + 1)
            continue
        if not stat.S_ISREG(mode):
            raise _refused(path, "is a link or a device, and only files and folders are kept")
        _check_name(path)
        if is_internal(path) and path not in internal_paths:
            raise _refused(path, f"lies in the folder '{INTERNAL_FOLDER}', which is the engine's")
        with _opened_file(name, folder) as file:
            yield path, file


def _remove_unknown(folder: int, prefix: str, known: set[str]) -> None:
    """Remove every file that is not known, and folders that are empty then."""
    for name in os.listdir(folder):
        path = f"{prefix}{name}"
        if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            if path not in known:
                os.unlink(name, dir_fd=folder)
            continue
        with _opened_folder(name, folder) as inner:
            _remove_unknown(inner, f"{path}/", known)
            is_empty = not os.listdir(inner)  # noqa: PTH208 - by descriptor
        if is_empty:
            os.rmdir(name, dir_fd=folder)


@contextmanager
def _opened_folder(name: str | Path, within: int | None = None) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    descriptor = os.open(name, flags, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _opened_file(name: str, within: int) -> Iterator[int]:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as problem:
        raise _refused(path, "has a name that is no UTF-8 text") from problem


def _signature_of(descriptor: int) -> Signature:
    return _signature(os.fstat(descriptor))


def _signature(status: os.stat_result) -> Signature:
    return Signature(status.st_size, status.st_mtime_ns, status.st_ino)


def _refused(path: str, reason: str) -> ToolFailure:
    text = f"the file {path!r:.200} {reason}: remove it before the task ends"
    return ToolFailure(failure("config", text, source="files"))
