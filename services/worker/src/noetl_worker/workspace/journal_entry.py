"""Entries of the journal of an execution's files: one for each task that changed files."""

from datetime import datetime
from typing import Any

from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import PayloadRef
from noetl_worker.workspace.file_content import FileContent

# Longer lists of chunks, and larger outcomes, are payloads beside the entry.
INLINE_CHUNKS_MAX = 64
INLINE_OUTCOME_BYTES_MAX = 64 * 1024


class Writer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which unit of which step changed a file; `activation` counts the execution's step runs."""

    step: str
    unit: str
    activation: int
    row_index: int | None = None

    def __str__(self) -> str:
        row = "" if self.row_index is None else f", row {self.row_index}"
        return f"step '{self.step}' ({self.unit}{row})"


class FileChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A new version of a file, or its removal; long lists of chunks are behind `chunks_ref`."""

    path: str
    size_bytes: int = 0
    chunk_bytes: int = 0
    chunks: tuple[str, ...] = ()
    chunks_ref: PayloadRef | None = None
    is_executable: bool = False
    is_removed: bool = False

    def content(self, chunks: tuple[str, ...]) -> FileContent:
        """Return the content of the version."""
        return FileContent(
            size_bytes=self.size_bytes,
            chunk_bytes=self.chunk_bytes,
            chunks=chunks,
            is_executable=self.is_executable,
        )


class KeptOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the task returned: a later attempt of it is given this and does not run again."""

    data: Any = None
    has_data: bool = False
    error: ErrorObject | None = None


class JournalEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one task did to the files of its execution.

    `key` names the attempt of the task and is empty for files that were inherited; `base` is the
    entry up to which the task saw the files.
    """

    sequence: int
    key: str
    writer: Writer
    base: int
    written_at: datetime
    changes: tuple[FileChange, ...]
    outcome: KeptOutcome | None = None
    outcome_ref: PayloadRef | None = None
