"""The files of an execution as one attempt of one task uses them.

The task reads and writes in a checkout. When it has succeeded, what it changed becomes the next
version of the execution's files, in one entry of the journal together with what the task returned.
An attempt that fails or dies changes nothing. A later attempt of a task whose entry is there does
not run again.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from noetl_contracts import codec
from noetl_worker.domain.failures import ToolFailure, failure, of_file
from noetl_worker.in_thread import in_thread
from noetl_worker.tools.call import Call, Outcome
from noetl_worker.tools.file_names import FileName, parse_file_name
from noetl_worker.workspace import file_chunks
from noetl_worker.workspace.checkout import Checkout, FolderChanges, is_internal
from noetl_worker.workspace.journal import Files, Journal
from noetl_worker.workspace.journal_entry import FileChange, JournalEntry, KeptOutcome, Writer

if TYPE_CHECKING:
    from noetl_worker.workspace.workspaces import Workspaces

# What DuckDB and SQLite keep beside a database that was not closed in order.
_SIDE_FILES = (".wal", "-wal", "-journal")


class RecordedOutcome(Exception):  # noqa: N818 - it carries an outcome, it is not an error
    """This attempt of the task has run already; its outcome is given instead."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("the task has run already")
        self.outcome = outcome


class FileConflict(ToolFailure):
    """Another task changed a file after this one had begun to use it."""

    KIND = "file_conflict"


class TaskFiles:
    """Files of the execution for one attempt of a task; nothing is read before they are used."""

    def __init__(self, call: Call, *, workspaces: "Workspaces") -> None:
        self._call = call
        self._workspaces = workspaces
        self._payloads = workspaces.payloads_of(call.site)
        self._checkout: Checkout | None = None
        self._is_borrowed = False
        self._journal: Journal | None = None
        self._files: Files = {}
        self._base = 0
        # The entry of this attempt, if a streaming task runs for the second time.
        self._earlier: JournalEntry | None = None

    def parse_name(self, text: object) -> FileName:
        """Read the name of a file; raises `ToolFailure`."""
        return parse_file_name(
            text, organization_folder=self._workspaces.folder_of(self._call.site)
        )

    def lock_path(self, name: FileName) -> Path:
        """Return what stands for a file in locks: the same on every worker of a machine."""
        if name.is_of_organization:
            return self._workspaces.organization_path(name, self._call.site)
        return Path("/executions") / self._call.site.execution_id / name.path

    async def path(self, name: FileName) -> Path:
        """Return where a file lies, or where it is to be written; raises `ToolFailure`.

        Raises `RecordedOutcome` where this attempt of the task has run already.
        """
        if name.is_of_organization:
            return self._workspaces.organization_path(name, self._call.site)
        checkout = await self._opened_checkout(is_latest=True)
        if is_internal(name.path):
            checkout.internal_paths.add(name.path)
        wanted = {name.path, *(f"{name.path}{suffix}" for suffix in _SIDE_FILES)}
        await self._fetch(checkout, wanted & (self._files.keys() | checkout.paths))
        path = checkout.folder / name.path
        await in_thread(_make_parent, path, name.path)
        return path

    async def folder(self, checkout: Checkout | None = None) -> Path:
        """Return a folder with all files of the execution; raises as `path`.

        With a `checkout` it is that one's, whose owner lends it until `publish` or `drop_changes`.
        """
        if checkout is not None and self._checkout is None:
            self._checkout = checkout
            try:
                await self._open_journal(is_latest=False)
            except BaseException:
                self._checkout = None
                raise
        opened = await self._opened_checkout(is_latest=False)
        internal = {path for path in opened.paths if is_internal(path)}
        if internal:
            await in_thread(_remove_files, opened, internal)
        visible = {path for path in self._files if not is_internal(path)}
        if wanted := visible | opened.paths:
            await self._fetch(opened, wanted)
        return opened.folder

    async def publish(self, outcome: Outcome) -> None:
        """Make what the task changed the next version; raises `ToolFailure`, `FileConflict`."""
        checkout, journal = self._checkout, self._journal
        if checkout is None or journal is None:
            return
        if checkout.is_bare:
            return
        if self._earlier is not None:
            await in_thread(checkout.drop_changes)
            return
        with _reading_files():
            changes = await in_thread(checkout.read_changes)
        if not changes.contents and not changes.removed:
            return
        self._check_limits(changes)
        entry = await self._stored_entry(journal, checkout, changes, outcome)
        await journal.append(entry, check=lambda files: self._check_conflicts(changes, files))
        await in_thread(checkout.accept_changes, changes)
        self._files, self._base = journal.files, journal.length
        self._workspaces.note_entries(self._call.site, journal.length)

    async def drop_changes(self) -> None:
        """Forget what the task changed, as if it had not run."""
        if self._checkout is not None and not self._checkout.is_bare:
            await in_thread(self._checkout.drop_changes)

    async def release(self) -> None:
        """Give the checkout back; what was not published is forgotten."""
        checkout, self._checkout = self._checkout, None
        if checkout is not None and self._is_borrowed:
            await self._workspaces.give_back(checkout, self._call.site)

    async def _opened_checkout(self, *, is_latest: bool) -> Checkout:
        if self._checkout is None:
            await self._open_journal(is_latest=is_latest)
            self._checkout = await self._workspaces.borrow(self._call.site)
            self._checkout.internal_paths = set()
            self._is_borrowed = True
        return self._checkout

    async def _open_journal(self, *, is_latest: bool) -> None:
        """Read which versions there are; raises `RecordedOutcome`.

        Unless the task wants the latest ones, those are enough that tasks before it have left.
        """
        site = self._call.site
        journal = self._workspaces.journal_of(site, self._payloads)
        is_known = site.file_entries <= journal.length and not site.is_repeated
        if is_latest or not is_known or journal.may_inherit(site.file_sources):
            await journal.refresh(site.file_sources)
            self._workspaces.note_entries(site, journal.length)
        found = await journal.find_outcome(self._call.attempt_key)
        self._journal = journal
        if found is None:
            self._files, self._base = journal.files, journal.length
            return
        entry, kept = found
        if self._call.sink is None:
            data = kept.data if kept.has_data else UNSET
            raise RecordedOutcome(Outcome(data=data, error=kept.error))
        # Its rows are wanted again: it sees what it saw, and what it writes is there already.
        self._earlier = entry
        self._files, self._base = await journal.files_at(entry.base), entry.base

    async def _fetch(self, checkout: Checkout, paths: Iterable[str]) -> None:
        """Let the checkout hold these files in the versions that this task sees."""
        ordered = sorted(paths)
        gone = {path for path in ordered if path not in self._files}
        await in_thread(_remove_files, checkout, gone)
        with _reading_files():
            for path in ordered:
                if path not in gone:
                    content = self._files[path].content
                    await file_chunks.fetch_file(checkout, path, content, self._payloads)

    async def _stored_entry(
        self, journal: Journal, checkout: Checkout, changes: FolderChanges, outcome: Outcome
    ) -> JournalEntry:
        described: list[FileChange] = [
            FileChange(path=path, is_removed=True) for path in changes.removed
        ]
        for path, content in changes.contents.items():
            with _reading_files():
                await file_chunks.store_file(checkout, path, content, self._payloads)
            described.append(await journal.describe_change(path, content))
        site = self._call.site
        entry = JournalEntry(
            sequence=0,
            key=self._call.attempt_key,
            writer=Writer(
                step=site.step,
                unit=site.unit,
                activation=site.activation,
                row_index=site.row_index,
            ),
            base=self._base,
            written_at=self._workspaces.clock.now(),
            changes=tuple(described),
        )
        has_data = outcome.data is not UNSET
        kept = KeptOutcome(
            data=outcome.data if has_data else None, has_data=has_data, error=outcome.error
        )
        masked = self._workspaces.mask.data(codec.encode(kept))
        return await journal.with_outcome(entry, codec.decode_as(masked, KeptOutcome))

    def _check_conflicts(self, changes: FolderChanges, files: Files) -> None:
        """Refuse to write over what another task has written meanwhile; raises `FileConflict`."""
        for path in (*changes.contents, *changes.removed):
            before, latest = self._files.get(path), files.get(path)
            if latest == before:
                continue
            is_same = latest is not None and latest.content == changes.contents.get(path)
            if is_same or (latest is None and path in changes.removed):
                continue
            other = "another step" if latest is None else str(latest.writer)
            own = Writer(
                step=self._call.site.step,
                unit=self._call.site.unit,
                activation=self._call.site.activation,
                row_index=self._call.site.row_index,
            )
            text = (
                f"the file {path!r:.200} was changed by {other} while {own} was using it: run "
                "the two one after the other, or let each write a file of its own"
            )
            raise FileConflict(
                failure(FileConflict.KIND, text, source="files", details={"file": path})
            )

    def _check_limits(self, changes: FolderChanges) -> None:
        sizes = {path: version.content.size_bytes for path, version in self._files.items()}
        sizes |= {path: content.size_bytes for path, content in changes.contents.items()}
        limits = self._workspaces.limits
        files = len(sizes) - len(changes.removed)
        total = sum(size for path, size in sizes.items() if path not in changes.removed)
        if files > limits.files_max or total > limits.bytes_max:
            text = (
                f"the files of this execution would be {files} with {total} bytes, and at most "
                f"{limits.files_max} with {limits.bytes_max} bytes are kept: remove what is no "
                "longer needed, store tables with an artifact task, or raise "
                "NOETL_WORKER_WORKSPACE_FILES_MAX and NOETL_WORKER_WORKSPACE_BYTES_MAX"
            )
            raise ToolFailure(failure("limit", text, source="files"))


@contextmanager
def _reading_files() -> Iterator[None]:
    """Tell what the file system refuses as a failure of the task."""
    try:
        yield
    except OSError as problem:
        name = str(problem.filename or "a file of the execution")
        raise ToolFailure(of_file(problem, name, source="files")) from problem


def _make_parent(path: Path, name: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ToolFailure(of_file(problem, name, source="files")) from problem


def _remove_files(checkout: Checkout, paths: Iterable[str]) -> None:
    for path in paths:
        checkout.remove_file(path)
