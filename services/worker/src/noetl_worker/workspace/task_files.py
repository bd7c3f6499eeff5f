"""The files of an execution as one attempt of one task uses them.

The task reads and writes in a checkout. When it has succeeded, what it changed becomes the next
version of the execution's files, in one entry of the journal together with what the task returned.
An attempt that fails or dies changes nothing. A later attempt of a task whose entry is there does
not run again.
"""

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET, structs

from noetl_chassis.blocking_work import run_in_thread
from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.execution_files import FileChange, FileWriter, JournalEntry, StoredOutcome
from noetl_worker.domain.failures import ToolFailure, build_error, classify_file_error
from noetl_worker.tools.calls.call import (
    ORGANIZATION_PREFIX,
    Call,
    FileName,
    Outcome,
    parse_file_name,
)
from noetl_worker.workspace import file_chunks
from noetl_worker.workspace.checkout import Checkout, FolderChanges
from noetl_worker.workspace.file_journal import FileJournal, Files, FileVersion
from noetl_worker.workspace.folder_files import is_internal, list_parent_folders

if TYPE_CHECKING:
    from noetl_worker.workspace.workspaces import Workspaces

# What DuckDB and SQLite keep beside a database that was not closed in order.
_SIDE_FILES = (".wal", "-wal", "-journal")
# Errors that a file may have caused by not being there.
_FILES_NAMED_MAX = 5
# The words of DuckDB for files, of Python, and of DuckDB for addresses.
_MISSING_NAME = re.compile(
    r"No files found that match the pattern \"([^\"]+)\"|No such file or directory: '([^']+)'"
    r"|Cannot access file \"(noetl://files/[^\"]+)\""
)
_HINTED_KINDS = frozenset({"not_found", "db_error"})


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
        self._payloads = workspaces.get_payloads(call.site)
        self._checkout: Checkout | None = None
        self._is_borrowed = self._is_published = self._is_exposed = False
        # Names that the task has used and that are no files of the execution.
        self._missed: list[str] = []
        self._journal: FileJournal | None = None
        self._files: Files = {}
        self._base = 0
        # The entry of this attempt, if a streaming task runs for the second time.
        self._earlier: JournalEntry | None = None

    def parse_name(self, text: object) -> FileName:
        """Read the name of a file; raises `ToolFailure`."""
        return parse_file_name(
            text, organization_folder=self._workspaces.find_organization_folder(self._call.site)
        )

    def lock_path(self, name: FileName) -> Path:
        """Return what stands for a file in locks: the same on every worker of a machine."""
        if name.is_of_organization:
            return self._workspaces.resolve_organization_path(name, self._call.site)
        return Path("/executions") / self._call.site.execution_id / name.path

    async def fetch_path(self, name: FileName) -> Path:
        """Return where a file lies, or where it is to be written; raises `ToolFailure`.

        Raises `RecordedOutcome` where this attempt of the task has run already.
        """
        if name.is_of_organization:
            return self._workspaces.resolve_organization_path(name, self._call.site)
        checkout = await self._open_checkout(is_latest=True)
        if is_internal(name.path):
            checkout.internal_paths.add(name.path)
        # A file in the place of a folder has to be there, so that the tool is refused.
        paths = {name.path, *list_parent_folders(name.path)}
        paths |= {f"{name.path}{suffix}" for suffix in _SIDE_FILES}
        await self._fetch_versions(checkout, paths & (self._files.keys() | checkout.file_paths))
        path = checkout.folder / name.path
        is_folder = any(file.startswith(f"{name.path}/") for file in self._files)
        await run_in_thread(_make_folder, path if is_folder else path.parent, name.path)
        if not is_folder and name.path not in self._files:
            self._missed.append(name.path)
        return path

    async def fetch_folder(
        self, checkout: Checkout | None = None, *, is_exposed: bool = False
    ) -> Path:
        """Return a folder with all files of the execution; raises as `fetch_path`.

        With a `checkout` it is that one's, whose owner lends it until `drop_changes`. One that is
        exposed to processes which may outlive the task is removed after it.
        """
        self._is_exposed |= is_exposed
        if checkout is not None and self._checkout is None:
            self._checkout = checkout
            try:
                await self._open_journal(is_latest=False)
            except BaseException:
                self._checkout = None
                raise
        open_checkout = await self._open_checkout(is_latest=False)
        unused = open_checkout.file_paths - open_checkout.internal_paths
        internal = {path for path in unused if is_internal(path)}
        if internal:
            await run_in_thread(open_checkout.remove_files, internal)
        visible = {path for path in self._files if not is_internal(path)}
        if paths := visible | (open_checkout.file_paths - open_checkout.internal_paths):
            await self._fetch_versions(open_checkout, paths)
        return open_checkout.folder

    async def publish_changes(self, outcome: Outcome) -> None:
        """Make what the task changed the next version; raises `ToolFailure`, `FileConflict`.

        Where another run of the same attempt has done so meanwhile, it raises `RecordedOutcome`.
        """
        checkout, journal = self._checkout, self._journal
        if checkout is None or journal is None or self._is_published or checkout.is_bare:
            return
        if self._earlier is not None:
            with _translate_file_errors():
                await run_in_thread(checkout.drop_changes)
            return
        limits = self._workspaces.limits
        with _translate_file_errors():
            changes = await run_in_thread(checkout.read_changes, limits)
        self._check_limits(changes)
        if changes.contents or changes.removed:
            await self._append_changes(journal, checkout, changes, outcome)
        self._is_published = True

    async def _append_changes(
        self, journal: FileJournal, checkout: Checkout, changes: FolderChanges, outcome: Outcome
    ) -> None:
        entry = await self._store_entry(journal, checkout, changes, outcome)
        is_own = await journal.append_entry(
            entry, check=lambda files: self._check_conflicts(changes, files)
        )
        self._workspaces.note_entries(self._call.site, journal.entry_count)
        if not is_own and self._call.sink is None:
            stored_outcome = await journal.find_outcome(entry.key)
            assert stored_outcome is not None, "the entry with this key has just been read"
            raise RecordedOutcome(_build_outcome(stored_outcome[1]))
        if is_own:
            await run_in_thread(checkout.accept_changes, changes)

    async def drop_changes(self) -> bool:
        """Forget what was not published; tell whether the folder may be used by another task.

        The Python tool asks it after a call whether its process, whose folder this is, may serve
        another. A folder that was lent for this task is its owner's again.
        """
        checkout = self._checkout
        if not self._is_borrowed:
            self._checkout = None
        if checkout is None or checkout.is_bare:
            return True
        return await self._workspaces.tidy_checkout(checkout)

    async def release_checkout(self) -> None:
        """Give the checkout back; what was not published is forgotten."""
        checkout, self._checkout = self._checkout, None
        if checkout is not None and self._is_borrowed:
            await self._workspaces.give_back_checkout(
                checkout, self._call.site, is_reusable=not self._is_exposed
            )

    def add_hint(self, outcome: Outcome) -> Outcome:
        """Say of a task that did not find a file where it was looked for, and the way out."""
        error = outcome.error
        hint = None if error is None else self._find_hint(error)
        if error is None or hint is None:
            return outcome
        message = f"{error.message}; {hint}"
        return structs.replace(outcome, error=structs.replace(error, message=message))

    def _find_hint(self, error: ErrorObject) -> str | None:
        folder = self._workspaces.find_organization_folder(self._call.site)
        if error.kind in _HINTED_KINDS:
            organization_names = [
                name for name in self._missed if folder is not None and _is_file(folder / name)
            ]
            if organization_names:
                return (
                    "a file of the organization is named "
                    f"{ORGANIZATION_PREFIX}{organization_names[0]}"
                )
        missed_names = [name for name in self._missed if not is_internal(name)]
        # Who looks a file up by its name says so; code and statements name it in their errors.
        is_looked_up = bool(missed_names) and error.kind == "not_found"
        missing_name = missed_names[0] if is_looked_up else _find_missing_name(error)
        if missing_name is None:
            return None
        if missing_name.startswith(ORGANIZATION_PREFIX):
            return (
                "statements reach files of the execution: give this one to the task as "
                f"`inputs: {{rows: {{path: '{missing_name}'}}}}`, and read it FROM rows"
            )
        visible = sorted(path for path in self._files if not is_internal(path))
        unnamed_count = len(visible) - _FILES_NAMED_MAX
        names_text = ", ".join(visible[:_FILES_NAMED_MAX]) + (
            f" and {unnamed_count} more" if unnamed_count > 0 else ""
        )
        return (
            f"tasks find the files of their execution, which has {names_text or 'none'}: take "
            f"this one along with `noetl run FILE --file {missing_name}`"
        )

    async def _open_checkout(self, *, is_latest: bool) -> Checkout:
        if self._checkout is None:
            await self._open_journal(is_latest=is_latest)
            with _translate_file_errors():
                self._checkout = await self._workspaces.borrow_checkout(self._call.site)
            self._checkout.internal_paths = set()
            self._is_borrowed = True
        return self._checkout

    async def _open_journal(self, *, is_latest: bool) -> None:
        """Read which versions there are; raises `RecordedOutcome`.

        Unless the task wants the latest ones, those are enough that tasks before it have left.
        """
        site = self._call.site
        journal = self._workspaces.get_journal(site, self._payloads)
        is_known = site.file_entries <= journal.entry_count and not site.is_repeated
        if is_latest or not is_known or journal.may_inherit(site.file_sources):
            await journal.read_latest(site.file_sources)
            self._workspaces.note_entries(site, journal.entry_count)
        outcome = await journal.find_outcome(self._call.attempt_key)
        self._journal = journal
        if outcome is None:
            self._files, self._base = journal.latest_files, journal.entry_count
            return
        entry, stored_outcome = outcome
        if self._call.sink is None:
            raise RecordedOutcome(_build_outcome(stored_outcome))
        # Its rows are wanted again: it sees what it saw, and what it writes is there already.
        self._earlier = entry
        self._files, self._base = await journal.list_files_at(entry.base), entry.base

    async def _fetch_versions(self, checkout: Checkout, paths: AbstractSet[str]) -> None:
        """Let the checkout hold these files in the versions that this task sees."""
        contents = {path: self._files[path].content for path in paths if path in self._files}
        gone = [path for path in paths if path not in self._files]
        with _translate_file_errors():
            await run_in_thread(checkout.remove_files, gone)
            await file_chunks.fetch_files(checkout, contents, self._payloads)

    async def _store_entry(
        self, journal: FileJournal, checkout: Checkout, changes: FolderChanges, outcome: Outcome
    ) -> JournalEntry:
        file_changes: list[FileChange] = [
            FileChange(path=path, is_removed=True) for path in changes.removed
        ]
        with _translate_file_errors():
            await file_chunks.store_files(checkout, changes.contents, self._payloads)
        for path, content in changes.contents.items():
            file_changes.append(await journal.describe_change(path, content))
        entry = JournalEntry(
            sequence=0,
            key=self._call.attempt_key,
            writer=self._entry_writer,
            base=self._base,
            written_at=self._workspaces.clock.now(),
            changes=tuple(file_changes),
        )
        has_data = outcome.data is not UNSET
        stored_outcome = StoredOutcome(
            data=outcome.data if has_data else None, has_data=has_data, error=outcome.error
        )
        masked = self._workspaces.mask.mask_bytes(codec.encode_json(stored_outcome))
        return await journal.attach_outcome(entry, codec.decode_as(masked, StoredOutcome))

    def _check_conflicts(self, changes: FolderChanges, files: Files) -> None:
        """Refuse to write over what another task has written meanwhile; raises `FileConflict`."""
        for path in (*changes.contents, *changes.removed):
            before, latest = self._files.get(path), files.get(path)
            if latest == before:
                continue
            is_same = latest is not None and latest.content == changes.contents.get(path)
            if is_same or (latest is None and path in changes.removed):
                continue
            raise self._build_conflict(path, latest)
        self._check_places(changes, files)

    def _check_places(self, changes: FolderChanges, files: Files) -> None:
        """Refuse a file in the place of a folder, and a folder in that of a file."""
        remaining_files = {
            path: version for path, version in files.items() if path not in changes.removed
        }
        places = remaining_files.keys() | changes.contents.keys()
        new_paths = changes.contents.keys() - files.keys()
        for path in sorted(new_paths):
            for folder in list_parent_folders(path):
                if folder in places:
                    raise self._build_conflict(folder, remaining_files.get(folder))
        # Only new files can have taken the place of a folder.
        folders = (
            {folder: path for path in remaining_files for folder in list_parent_folders(path)}
            if new_paths
            else {}
        )
        for path in sorted(new_paths & folders.keys()):
            raise self._build_conflict(path, remaining_files[folders[path]])

    def _build_conflict(self, path: str, latest: FileVersion | None) -> FileConflict:
        other = "another step" if latest is None else str(latest.writer)
        text = (
            f"the file {path!r:.200} was changed by {other} "
            f"while {self._entry_writer} was using it: run "
            "the two one after the other, or let each write a file of its own"
        )
        return FileConflict(
            build_error(FileConflict.KIND, text, source="files", details={"file": path})
        )

    @property
    def _entry_writer(self) -> FileWriter:
        site = self._call.site
        return FileWriter(
            step=site.step,
            unit=site.unit,
            activation=site.activation,
            row_index=site.row_index,
        )

    def _check_limits(self, changes: FolderChanges) -> None:
        limits = self._workspaces.limits
        sizes = {path: version.content.size_bytes for path, version in self._files.items()}
        sizes |= {path: content.size_bytes for path, content in changes.contents.items()}
        for path in changes.removed:
            sizes.pop(path, None)
        total = sum(sizes.values())
        if changes.is_too_much:
            excess = "more than that"
        elif len(sizes) > limits.files_max or total > limits.bytes_max:
            excess = f"{len(sizes)} with {total} bytes"
        else:
            return
        text = (
            f"of the files of an execution at most {limits.files_max} with {limits.bytes_max} "
            f"bytes are kept, and these would be {excess}: remove what is no longer needed, store "
            "tables with an artifact task, or raise NOETL_WORKER_WORKSPACE_FILES_MAX and "
            "NOETL_WORKER_WORKSPACE_BYTES_MAX"
        )
        raise ToolFailure(build_error("limit", text, source="files"))


@contextmanager
def _translate_file_errors() -> Iterator[None]:
    """Tell what the file system refuses as a failure of the task."""
    try:
        yield
    except OSError as problem:
        name = str(problem.filename or "a file of the execution")
        raise ToolFailure(classify_file_error(problem, name, source="files")) from problem


def _make_folder(folder: Path, name: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ToolFailure(classify_file_error(problem, name, source="files")) from problem


def _find_missing_name(error: ErrorObject) -> str | None:
    """Return the name of the file that a task did not find; None where it failed otherwise."""
    is_of_code = error.exception_type == FileNotFoundError.__name__
    if not is_of_code and error.kind not in _HINTED_KINDS:
        return None
    match = _MISSING_NAME.search(error.message)
    return None if match is None else match[1] or match[2] or match[3]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # Its name is too long, for example.
        return False


def _build_outcome(stored_outcome: StoredOutcome) -> Outcome:
    return Outcome(
        data=stored_outcome.data if stored_outcome.has_data else UNSET, error=stored_outcome.error
    )
