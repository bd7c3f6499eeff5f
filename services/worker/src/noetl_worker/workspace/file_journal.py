"""The journal of an execution's files, in the payload store: which versions there are, in order.

Entry n is the named object `workspaces/<execution>/<n>`. A name is written once, so two workers
never write the same entry. Reading ends at the first number that is not there.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.execution_files import (
    INLINE_CHUNKS_MAX,
    INLINE_OUTCOME_BYTES_MAX,
    NAME_PREFIX,
    FileChange,
    FileContent,
    FileSource,
    FileWriter,
    JournalEntry,
    StoredOutcome,
    build_entry_name,
)
from noetl_contracts.ids import ExecutionId
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_worker.domain.failures import ToolFailure, build_error

if TYPE_CHECKING:
    from noetl_worker.payloads.tenant_payloads import TenantPayloads

ENTRIES_MAX = 1_000_000
_READS_AT_ONCE = 16
_INHERITED = FileWriter(step="(rerun)", unit="inherited", activation=0)


class FileVersion(Struct, frozen=True, kw_only=True):
    """The version of a file that holds at a point of the journal, and who wrote it."""

    content: FileContent
    sequence: int
    writer: FileWriter


Files = dict[str, FileVersion]


class FileJournal:
    """The files of one execution; entries that were read are kept."""

    def __init__(self, execution_id: ExecutionId, payloads: "TenantPayloads") -> None:
        self._execution_id = execution_id
        self._payloads = payloads
        self._entries: list[JournalEntry] = []
        self._chunks_by_digest: dict[str, tuple[str, ...]] = {}
        self._sequence_by_key: dict[str, int] = {}
        self._files: Files = {}
        self._lock = asyncio.Lock()
        self._has_inherited = False

    @property
    def entry_count(self) -> int:
        """Return the number of the latest entry that was read; 0 before the first."""
        return len(self._entries)

    @property
    def latest_files(self) -> Files:
        """Return the latest version of each file; the mapping is never changed in place."""
        return self._files

    def may_inherit(self, sources: Sequence[FileSource]) -> bool:
        """Tell whether the files of earlier executions have not been looked for yet."""
        return bool(sources) and not self._entries and not self._has_inherited

    async def read_latest(self, sources: Sequence[FileSource] = ()) -> None:
        """Read the entries that others have added; raises `ToolFailure`.

        The first look at the files of a rerun takes over those that its `sources` had.
        """
        async with self._lock:
            await self._read_new_entries()
            if self.may_inherit(sources):
                await self._inherit_files(sources)
                self._has_inherited = True

    async def find_outcome(self, key: str) -> tuple[JournalEntry, StoredOutcome] | None:
        """Return the entry of a task's attempt that has run already, and what it returned."""
        sequence = self._sequence_by_key.get(key)
        if sequence is None:
            return None
        entry_data = await self._payloads.find_named(self._build_entry_name(sequence))
        if entry_data is None:
            text = f"entry {sequence} of the journal of this execution's files is gone"
            raise ToolFailure(build_error("reference_not_available", text, source="files"))
        entry = codec.decode_as(entry_data, JournalEntry)
        if entry.outcome_ref is None:
            return entry, entry.outcome or StoredOutcome()
        data = await self._payloads.read_payload(entry.outcome_ref)
        return entry, codec.decode_as(data, StoredOutcome)

    async def list_files_at(self, sequence: int) -> Files:
        """Return the files as they were after an entry."""
        files: Files = {}
        for entry in self._entries[:sequence]:
            await self._apply_entry(entry, files)
        return files

    async def append_entry(self, entry: JournalEntry, *, check: Callable[[Files], None]) -> bool:
        """Add an entry behind all others; `check` is asked again after each that came between.

        It is not added where another with its key is there; tell whether it was. Raises
        `ToolFailure`, also what `check` raises.
        """
        async with self._lock:
            while not entry.key or entry.key not in self._sequence_by_key:
                check(self._files)
                numbered = structs.replace(entry, sequence=self.entry_count + 1)
                if numbered.sequence > ENTRIES_MAX:
                    text = f"the tasks of an execution change files at most {ENTRIES_MAX} times"
                    raise ToolFailure(build_error("limit", text, source="files"))
                before = await self._payloads.put_named(
                    self._build_entry_name(numbered.sequence), codec.encode_json(numbered)
                )
                if before is None:
                    await self._add_entry(numbered)
                    return True
                await self._add_entry(codec.decode_as(before, JournalEntry))
            return False

    async def describe_change(self, path: str, content: FileContent) -> FileChange:
        """Describe a new version; a long list of chunks is stored first."""
        change = FileChange(
            path=path,
            size_bytes=content.size_bytes,
            chunk_bytes=content.chunk_bytes,
            chunks=content.chunks,
            is_executable=content.is_executable,
        )
        if len(content.chunks) <= INLINE_CHUNKS_MAX:
            return change
        ref = await self._payloads.store_payload(
            codec.encode_json(content.chunks), media_type=JSON_MEDIA_TYPE
        )
        self._chunks_by_digest[ref.sha256] = content.chunks
        return structs.replace(change, chunks=(), chunks_ref=ref)

    async def attach_outcome(self, entry: JournalEntry, outcome: StoredOutcome) -> JournalEntry:
        """Put what a task returned into its entry, by reference where it is large."""
        data = codec.encode_json(outcome)
        if len(data) <= INLINE_OUTCOME_BYTES_MAX:
            return structs.replace(entry, outcome=outcome)
        ref = await self._payloads.store_payload(data, media_type=JSON_MEDIA_TYPE)
        return structs.replace(entry, outcome_ref=ref)

    async def _read_new_entries(self) -> None:
        if not self._entries:
            data = await self._payloads.find_named(self._build_entry_name(1))
            if data is None:
                return
            await self._add_entry(codec.decode_as(data, JournalEntry))
            await self._read_listed_entries()
        while (
            data := await self._payloads.find_named(self._build_entry_name(self.entry_count + 1))
        ) is not None:
            await self._add_entry(codec.decode_as(data, JournalEntry))

    async def _read_listed_entries(self) -> None:
        """Read what a listing shows, several at once: a worker may come to a long journal."""
        names = await self._payloads.list_names(f"{NAME_PREFIX}/{self._execution_id}/")
        unread_names = [name for name in names if name > self._build_entry_name(self.entry_count)]
        for start in range(0, len(unread_names), _READS_AT_ONCE):
            entries = await asyncio.gather(
                *(
                    self._payloads.find_named(name)
                    for name in unread_names[start : start + _READS_AT_ONCE]
                )
            )
            for data in entries:
                entry = None if data is None else codec.decode_as(data, JournalEntry)
                # A listing may be behind: what it lacks is read one by one.
                if entry is None or entry.sequence != self.entry_count + 1:
                    return
                await self._add_entry(entry)

    async def _inherit_files(self, sources: Sequence[FileSource]) -> None:
        """Begin a rerun with the files that its first step saw when it ran the first time."""
        files: Files = {}
        written_at: datetime | None = None
        for source in sources:
            journal = FileJournal(source.execution_id, self._payloads)
            await journal.read_latest()
            for entry in journal._entries:
                before = source.before_activation
                if before is None or entry.writer.activation < before:
                    await journal._apply_entry(entry, files)
                    written_at = entry.written_at
        if not files or written_at is None:
            return
        changes = [
            await self.describe_change(path, version.content) for path, version in files.items()
        ]
        entry = JournalEntry(
            sequence=1,
            key="",
            writer=_INHERITED,
            base=0,
            written_at=written_at,
            changes=tuple(changes),
        )
        earlier_entry = await self._payloads.put_named(
            self._build_entry_name(1), codec.encode_json(entry)
        )
        await self._add_entry(
            entry if earlier_entry is None else codec.decode_as(earlier_entry, JournalEntry)
        )

    async def _add_entry(self, entry: JournalEntry) -> None:
        files = dict(self._files)
        await self._apply_entry(entry, files)
        # Outcomes are read again where they are needed.
        self._entries.append(structs.replace(entry, outcome=None))
        if entry.key:
            self._sequence_by_key[entry.key] = entry.sequence
        self._files = files

    async def _apply_entry(self, entry: JournalEntry, files: Files) -> None:
        for change in entry.changes:
            if change.is_removed:
                files.pop(change.path, None)
                continue
            chunks = change.chunks
            if change.chunks_ref is not None:
                chunks = self._chunks_by_digest.get(change.chunks_ref.sha256, ())
                if not chunks:
                    data = await self._payloads.read_payload(change.chunks_ref)
                    chunks = codec.decode_as(data, tuple[str, ...])
                    self._chunks_by_digest[change.chunks_ref.sha256] = chunks
            files[change.path] = FileVersion(
                content=change.build_content(chunks), sequence=entry.sequence, writer=entry.writer
            )

    def _build_entry_name(self, sequence: int) -> str:
        return build_entry_name(self._execution_id, sequence)
