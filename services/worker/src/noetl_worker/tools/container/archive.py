"""The files of a container as an archive: those it is given, and those it leaves."""

import os
import tarfile
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from msgspec import Struct

from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.container.names import RESULT_NAME, SOURCE

RESULT_BYTES_MAX = 16 * 1024 * 1024
_PATH_CHARACTERS_MAX = 4096
# A folder of the engine's own files, and one of files that are made again.
_INTERNAL, _CACHE = ".noetl", "__pycache__"
_FILE_MODE, _PROGRAM_MODE, _FOLDER_MODE = 0o644, 0o755, 0o755
# The user of an image is not known: anybody may write.
_OPEN_MODE = 0o777
_PROGRAM_BIT = 0o100
_COPIED_BYTES = 1024 * 1024
_SCRIPT_START = b"#!"


class WorkFile(Struct, frozen=True, kw_only=True):
    """A file that the task itself brings; `path` is relative to the container's folder."""

    path: str
    content: bytes


class WorkFiles(Struct, frozen=True, kw_only=True):
    """The files of a container: those of its execution, and those that the task brings."""

    folder: Path
    own: tuple[WorkFile, ...] = ()


def write_archive(target: BinaryIO, files: WorkFiles, *, user: str) -> None:
    """Write the files of an execution and of a task for a container's folder; this blocks.

    They belong to `user`, `uid:gid`; without one anybody may change them. The files of the task
    win over those of the execution.
    """
    folder = files.folder
    own_contents = {file.path: file.content for file in files.own}
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as archive:
        writer = _ArchiveWriter(archive, user)
        # The folder itself: runtimes make it as root's.
        writer.add_folder("/")
        for path in sorted(list_files(folder)):
            if path not in own_contents and path != RESULT_NAME:
                with (folder / path).open("rb") as stream:
                    status = os.fstat(stream.fileno())
                    is_program = bool(status.st_mode & _PROGRAM_BIT)
                    writer.add_file(path, stream, status.st_size, is_program=is_program)
        for path, content in own_contents.items():
            is_program = content.startswith(_SCRIPT_START)
            writer.add_file(path, BytesIO(content), len(content), is_program=is_program)
    target.seek(0)


def read_archive(source: BinaryIO, files: WorkFiles) -> bytes | None:
    """Give the folder the files of an archive, and return the result that is among them.

    Files of the task that are as they were are left out. This blocks. Raises `ToolFailure` for
    what is neither a file nor a folder, and for a result that is too large.
    """
    folder = files.folder
    own_contents = {file.path: file.content for file in files.own}
    result: bytes | None = None
    present_paths = set()
    source.seek(0)
    with tarfile.open(fileobj=source, mode="r:") as archive:
        for entry in archive:
            path = _parse_entry_path(entry)
            if entry.isdir() or path is None:
                continue
            if not entry.isreg():
                raise _build_file_failure(path, "is a link or a device: only files are kept")
            entry_file = archive.extractfile(entry)
            assert entry_file is not None, "a regular file has content"
            if path == RESULT_NAME:
                result = _read_result(entry, entry_file)
                continue
            if _is_own(entry, own_contents.get(path), entry_file):
                # What the execution has under this name was only hidden.
                present_paths.add(path)
                continue
            entry_file.seek(0)
            _write_file(folder, path, entry_file, is_program=bool(entry.mode & _PROGRAM_BIT))
            present_paths.add(path)
    for path in list_files(folder) - present_paths - {RESULT_NAME}:
        (folder / path).unlink()
    return result


def list_files(folder: Path) -> set[str]:
    """List the files of a folder, without those of the engine."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and not _is_left_out(path.relative_to(folder))
    }


class _ArchiveWriter:
    """Adds entries, each folder before what is in it."""

    def __init__(self, archive: tarfile.TarFile, user: str) -> None:
        self._archive = archive
        uid, _, gid = user.partition(":")
        self._owner = (int(uid), int(gid or uid)) if user else (0, 0)
        self._is_open = not user
        self._folders: set[str] = set()

    def add_folder(self, path: str) -> None:
        entry = self._build_entry(path, _FOLDER_MODE)
        entry.type = tarfile.DIRTYPE
        self._archive.addfile(entry)

    def add_file(self, path: str, content: IO[bytes], size: int, *, is_program: bool) -> None:
        for parent in reversed(PurePosixPath(path).parents):
            name = parent.as_posix()
            if name != "." and name not in self._folders:
                self._folders.add(name)
                self.add_folder(name)
        entry = self._build_entry(path, _PROGRAM_MODE if is_program else _FILE_MODE)
        entry.size = size
        self._archive.addfile(entry, content)

    def _build_entry(self, path: str, mode: int) -> tarfile.TarInfo:
        entry = tarfile.TarInfo(path)
        entry.uid, entry.gid = self._owner
        entry.mode = _OPEN_MODE if self._is_open else mode
        return entry


def _is_left_out(path: PurePosixPath | Path) -> bool:
    return path.parts[0] == _INTERNAL or _CACHE in path.parts


def _parse_entry_path(entry: tarfile.TarInfo) -> str | None:
    """Return the path below the container's folder; None for what is not kept."""
    path = PurePosixPath(entry.name)
    if path.is_absolute() or ".." in path.parts or len(entry.name) > _PATH_CHARACTERS_MAX:
        raise _build_file_failure(entry.name, "has a name that leads out of its folder")
    # The first part is the folder's own name.
    inner = PurePosixPath(*path.parts[1:])
    return None if not inner.parts or _is_left_out(inner) else inner.as_posix()


def _read_result(entry: tarfile.TarInfo, content: IO[bytes]) -> bytes:
    if entry.size > RESULT_BYTES_MAX:
        text = (
            f"{RESULT_NAME} has {entry.size:,} bytes, of at most {RESULT_BYTES_MAX:,}: leave the "
            "data in another file"
        )
        raise ToolFailure(build_error("payload_too_large", text, source=SOURCE))
    return content.read()


def _is_own(entry: tarfile.TarInfo, own_content: bytes | None, content: IO[bytes]) -> bool:
    return (
        own_content is not None and entry.size == len(own_content) and content.read() == own_content
    )


def _write_file(folder: Path, path: str, content: IO[bytes], *, is_program: bool) -> None:
    """Write a file whose folder may have been a file, or the other way round."""
    target = folder
    for part in PurePosixPath(path).parent.parts:
        target /= part
        if target.is_file():
            target.unlink()
        target.mkdir(exist_ok=True)
    target = folder / path
    if target.is_dir():
        _remove_tree(target)
    target.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(target, flags, 0o700 if is_program else 0o600), "wb") as target_file:
        while data := content.read(_COPIED_BYTES):
            target_file.write(data)


def _remove_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def _build_file_failure(path: str, reason: str) -> ToolFailure:
    text = f"the file {path!r:.200} {reason}: remove it before the container ends"
    return ToolFailure(build_error("config", text, source=SOURCE))
