"""Files that a run takes with it: named on the command line, sent in chunks, listed when it begins.

The execution finds them by their names from its first step on.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from noetl_cli.errors import CliError, ExitCode
from noetl_cli.files.playbook_file import PlaybookFile
from noetl_cli.planner.client import PlannerClient
from noetl_contracts.execution_files import (
    CHUNKS_MAX,
    FilePathError,
    choose_chunk_bytes,
    normalize_file_path,
)

FILES_MAX = 100
# A chunk is the body of a request, and there are so many.
CHUNK_BYTES_MAX = 2 * 1024 * 1024
FILE_BYTES_MAX = CHUNK_BYTES_MAX * CHUNKS_MAX


class RunFile(Struct, frozen=True, kw_only=True):
    """A file of this machine, and its name in the execution; the size is that when it was named."""

    path: Path
    name: str
    size_bytes: int

    @property
    def chunk_bytes(self) -> int:
        """Return how large its chunks are; the last one may be shorter."""
        return choose_chunk_bytes(self.size_bytes)

    def read_chunks(self) -> Iterator[bytes]:
        """Yield the file's chunks; raises `CliError` where it changes meanwhile."""
        size_bytes = 0
        try:
            with self.path.open("rb") as opened:
                while data := opened.read(self.chunk_bytes):
                    size_bytes += len(data)
                    yield data
        except OSError as error:
            raise _build_unusable_file_error(
                f"{self.path} cannot be read: {error.strerror or error}."
            ) from error
        if size_bytes != self.size_bytes:
            raise _build_unusable_file_error(
                f"{self.path} was written to while it was read.", "Run it again."
            )

    def describe_file(self, digests: list[str]) -> dict[str, Any]:
        """Describe the file as a request names it, with the digests of its stored chunks."""
        return {
            "path": self.name,
            "size_bytes": self.size_bytes,
            "chunk_bytes": self.chunk_bytes,
            "chunks": digests,
        }


def find_files(texts: list[str]) -> list[RunFile]:
    """Find the files of `--file` options: `PATH`, or `NAME=PATH`; raises `CliError`."""
    files = [_find_file(text) for text in texts]
    if len(files) > FILES_MAX:
        raise _build_unusable_file_error(
            f"--file is given {len(files)} times, and a run takes {FILES_MAX} files."
        )
    names = [file.name for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _build_unusable_file_error(
            f"Two files are named {twice!r} in the execution.", "Name one: --file NAME=PATH"
        )
    return files


def send_files(planner: PlannerClient, files: list[RunFile]) -> list[dict[str, Any]]:
    """Store the chunks of files with a planner, and describe the files."""
    return [
        file.describe_file(
            [planner.post_bytes("/api/files/chunks", data)["digest"] for data in file.read_chunks()]
        )
        for file in files
    ]


def _find_file(text: str) -> RunFile:
    name, sign, path_text = text.partition("=")
    # A file whose own name has the sign is meant by it.
    is_named = bool(sign) and not Path(text).exists()
    path = Path(path_text if is_named else text)
    if not path.is_file():
        fault = "is a folder" if path.is_dir() else "is not there"
        raise _build_unusable_file_error(
            f"--file {text}: {str(path)!r} {fault}.", "--file PATH, or NAME=PATH"
        )
    size_bytes = path.stat().st_size
    if size_bytes > FILE_BYTES_MAX:
        raise _build_unusable_file_error(
            f"{path} has {size_bytes:,} bytes, and a run takes files of {FILE_BYTES_MAX:,} bytes.",
            "Keep it in a bucket, or in the folder of the organization: noetl://files/NAME",
        )
    return RunFile(
        path=path, name=_choose_file_name(path, name if is_named else None), size_bytes=size_bytes
    )


def _choose_file_name(path: Path, given_name: str | None) -> str:
    """Return the name in the execution: the one that is given, the relative path, or the last part.

    A playbook names files relatively; an absolute path, or one with `..`, has no place there.
    """
    is_outside = path.is_absolute() or ".." in path.parts
    name = given_name if given_name is not None else path.name if is_outside else path.as_posix()
    try:
        checked = normalize_file_path(name)
    except FilePathError as problem:
        raise _build_unusable_file_error(
            f"--file: {name!r} {problem}.", "--file NAME=PATH"
        ) from problem
    if checked.startswith("/"):
        raise _build_unusable_file_error(
            f"--file: {name!r} is no relative name.", "--file data/rows.csv=PATH"
        )
    return checked


def _build_unusable_file_error(message: str, way_out: str = "") -> CliError:
    return CliError(message, way_out=way_out, exit_code=ExitCode.USAGE)


class RunRequest(Struct, frozen=True, kw_only=True):
    """What to run, with which inputs and credentials, and the playbooks that it may call."""

    source: PlaybookFile
    others: list[PlaybookFile] = []
    listens_at: int | None = None
    inputs: dict[str, Any]
    credentials: dict[str, dict[str, Any]]
    files: list[RunFile] = []
