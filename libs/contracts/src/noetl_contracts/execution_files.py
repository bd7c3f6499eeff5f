"""The files of an execution: their names, their contents in chunks, and the journal of versions.

Entry n of the journal is the named object `workspaces/<execution>/<n>` of the payload store. A file
that changes in one place shares its other chunks with the version before. So a database of 1 GB
into which a task inserts a row costs the store a few chunks and not 1 GB.
"""

import re
from datetime import datetime
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import ExecutionId
from noetl_contracts.payloads import PayloadRef

NAME_PREFIX = "workspaces"
# The folder of the engine's own files among those of an execution.
INTERNAL_FOLDER = ".noetl"
NAME_CHARACTERS_MAX = 1_024
CHUNK_BYTES_MIN = 256 * 1024
# A longer file has larger chunks, so that the list of its chunks stays short.
CHUNKS_MAX = 1024
# Stands before each stored chunk: a piece of a Parquet file alone must not look like one.
CHUNK_HEAD = b"noetl-file-chunk\n"
CHUNK_MEDIA_TYPE = "application/octet-stream"
# Longer lists of chunks, and larger outcomes, are payloads beside the entry.
INLINE_CHUNKS_MAX = 64
INLINE_OUTCOME_BYTES_MAX = 64 * 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class FilePathError(ValueError):
    """A path is not that of a file of an execution; the message says why, without the path."""


class FileContent(Struct, frozen=True, kw_only=True):
    """The size of a file in bytes, the size of its chunks, and the digest of each, in order.

    The digest of a chunk is the SHA-256 of `CHUNK_HEAD` and the chunk's bytes, as they are stored.
    """

    size_bytes: int
    chunk_bytes: int
    chunks: tuple[str, ...]
    is_executable: bool = False

    def get_chunk_size(self, index: int) -> int:
        """Return how many bytes a chunk has; the last one may be shorter."""
        return min(self.chunk_bytes, self.size_bytes - index * self.chunk_bytes)


class FileWriter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which unit of which step changed a file; `activation` counts the execution's step runs."""

    step: str
    unit: str
    activation: int
    row_index: int | None = None

    def __str__(self) -> str:
        row = "" if self.row_index is None else f", row {self.row_index}"
        return f"step '{self.step}' ({self.unit}{row})"


# Who wrote the files that a run took with it.
RUN = FileWriter(step="(run)", unit="taken along", activation=0)


class FileChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A new version of a file, or its removal; long lists of chunks are behind `chunks_ref`."""

    path: str
    size_bytes: int = 0
    chunk_bytes: int = 0
    chunks: tuple[str, ...] = ()
    chunks_ref: PayloadRef | None = None
    is_executable: bool = False
    is_removed: bool = False

    def build_content(self, chunks: tuple[str, ...]) -> FileContent:
        """Return the content of the version."""
        return FileContent(
            size_bytes=self.size_bytes,
            chunk_bytes=self.chunk_bytes,
            chunks=chunks,
            is_executable=self.is_executable,
        )


class StoredOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the task returned: a later attempt of it is given this and does not run again."""

    data: Any = None
    has_data: bool = False
    error: ErrorObject | None = None


class JournalEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one task did to the files of its execution.

    `key` names the attempt of the task. It is empty for files that were inherited, or that the run
    took with it. `base` is the entry up to which the task saw the files.
    """

    sequence: int
    key: str
    writer: FileWriter
    base: int
    written_at: datetime
    changes: tuple[FileChange, ...]
    outcome: StoredOutcome | None = None
    outcome_ref: PayloadRef | None = None


def build_entry_name(execution_id: ExecutionId, sequence: int) -> str:
    """Return the name of an entry of an execution's journal in the payload store."""
    return f"{NAME_PREFIX}/{execution_id}/{sequence:010d}"


def choose_chunk_bytes(size_bytes: int) -> int:
    """Return the smallest power of two that cuts a file into at most `CHUNKS_MAX` chunks."""
    chunk_bytes = CHUNK_BYTES_MIN
    while chunk_bytes * CHUNKS_MAX < size_bytes:
        chunk_bytes *= 2
    return chunk_bytes


def digest_chunk(data: bytes) -> str:
    """Return the SHA-256 of a chunk as it is stored."""
    digest = codec.start_digest()
    digest.update(CHUNK_HEAD)
    digest.update(data)
    return digest.hexdigest()


def normalize_file_path(name: str) -> str:
    """Return the path of a file of an execution in its normal form; raises `FilePathError`."""
    if _CONTROL.search(name) or len(name) > NAME_CHARACTERS_MAX:
        raise FilePathError("is not a file name")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise FilePathError("climbs out of its folder: write the path without '..'")
    if parts[:1] == [INTERNAL_FOLDER]:
        raise FilePathError(f"lies in the folder '{INTERNAL_FOLDER}', which is the engine's own")
    if not parts:
        raise FilePathError("names a folder, not a file")
    path = ("/" if name.startswith("/") else "") + "/".join(parts)
    try:
        return path.encode().decode()
    except UnicodeEncodeError as problem:
        raise FilePathError("is not a file name") from problem


class FileSource(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An earlier execution, whose files are taken over as its step runs before one left them.

    `before_activation` is the number of the first step run that is left out; None leaves out none.
    """

    execution_id: ExecutionId
    before_activation: int | None = None
