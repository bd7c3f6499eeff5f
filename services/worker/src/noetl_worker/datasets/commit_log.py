"""Which files of a folder are a dataset: numbered commits, each with the whole list.

A writer gives its files their final names, and makes all of them the next state of the dataset by
creating one object, `_noetl/commits/<number>.json`, that must not be there yet. Who loses that race
looks again at what is there. A commit whose identity is in the log already is not made twice, so
that an attempt which is repeated writes once. Files of attempts that died are in no commit: readers
of this log never see them. Once their task has committed they are removed, for none of its attempts
can commit any more; those of tasks that never did are removed when they are old.
"""

import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_playbook.model import datasets
from noetl_worker.datasets.address import OpenStore
from noetl_worker.datasets.problems import DatasetProblem

LOG_FOLDER = "_noetl/commits"
SUCCESS_NAME = "_SUCCESS"
_NUMBER = re.compile(r"(\d{20})\.json$")
# task, commit, attempt, and the number of the file in its task
_OWN_NAME = re.compile(
    r"(?:^|/)part-\d{5,}-(?P<commit>[0-9a-f]{16})-(?P<attempt>[0-9a-f]{8})-\d{1,9}\."
)
# Identities of commits that are remembered: an attempt is repeated long before so many others.
_REMEMBERED = 10_000
_RACES_MAX = 50
# Without a byte a file of these is none.
_NEVER_EMPTY = ("parquet", "orc", "arrow", "avro")
# An attempt whose files are older has ended.
_ABANDONED_AFTER = timedelta(hours=24)


class DataFile(Struct, frozen=True, kw_only=True):
    """A file of a dataset; `path` is relative to its root, `values` are those of its folders."""

    path: str
    size_bytes: int
    row_count: int | None = None
    values: dict[str, str | None] = {}


class DatasetState(Struct, frozen=True, kw_only=True):
    """One commit: every file that is there after it.

    `hidden` are files that it replaced and that may not be removed yet. `schema` is the Arrow
    schema of the rows with the columns of the folders, in base64. `added_columns` are those that
    commits have brought to rows that were there, each with its type, by the identity of the commit.
    """

    number: int = 0
    commit: str = ""
    files: list[DataFile] = []
    hidden: list[str] = []
    commits: list[str] = []
    schema: str | None = None
    partition_by: list[str] = []
    added_columns: dict[str, list[str]] = {}


class Commit(Struct, frozen=True, kw_only=True):
    """What a writer adds; `identity` is the same in every attempt of one task."""

    identity: str
    mode: str
    added: list[DataFile]
    schema: str
    partition_by: list[str] = []
    added_columns: list[str] = []


def build_file_name(task: int, identity: str, attempt: str, number: int, suffix: str) -> str:
    """Name a file so that it can be told which attempt has written it, and no other writes it."""
    return f"part-{task:05d}-{identity[:16]}-{attempt}-{number}.{suffix}"


class CommitLog:
    """The commits of the dataset at a root folder."""

    def __init__(self, store: OpenStore, root: str) -> None:
        self._store = store
        self._root = root

    def read_state(self) -> DatasetState | None:
        """Return the latest commit, None where there is none; raises `DatasetProblem`."""
        numbers = [
            int(match[1])
            for path, _, _ in self._store.list_objects(f"{self._root}/{LOG_FOLDER}")
            if (match := _NUMBER.search(path))
        ]
        if not numbers:
            return None
        key = self._build_key(max(numbers))
        try:
            return codec.decode_as(self._store.read_object(key), DatasetState)
        except msgspec.DecodeError as problem:
            shown_key = self._store.address.show_key(key)
            text = f"the commit {shown_key} is damaged ({problem}): remove it, or write anew"
            raise DatasetProblem("parse", text) from problem

    def append_commit(
        self, commit: Commit, fit_columns: Callable[[Commit, DatasetState], Commit] | None = None
    ) -> DatasetState:
        """Make the files the next state of the dataset, or return the one that they have made.

        `fit_columns` gives the commit the columns of the state that it follows, which may have
        come since its rows were checked. Raises `DatasetProblem`.
        """
        for _ in range(_RACES_MAX):
            before = self.read_state() or DatasetState()
            if commit.identity in before.commits:
                if commit.identity == before.commit:
                    self._finish_commit(before)
                return before
            fitted = commit if fit_columns is None else fit_columns(commit, before)
            after = self._build_next(fitted, before)
            data = codec.encode_json(after)
            if self._store.create_object(self._build_key(after.number), data):
                self._finish_commit(after)
                return after
        shown_path = self._store.address.shown_path
        text = f"{shown_path}: {_RACES_MAX} others have committed first: run the step again"
        raise DatasetProblem("file_conflict", text)

    def remove_abandoned(self, now: datetime) -> int:
        """Remove files that no commit will name; return how many they were.

        Raises `DatasetProblem`.
        """
        state = self.read_state() or DatasetState()
        paths = {file.path for file in state.files}
        committed = {identity[:16] for identity in state.commits}
        oldest = now - _ABANDONED_AFTER
        gone = []
        for key, _, modified in self._store.list_objects(self._root):
            path = key.removeprefix(f"{self._root}/")
            match = _OWN_NAME.search(path)
            if match is None or path in paths:
                continue
            is_settled = match["commit"] in committed
            if is_settled or modified < oldest or path in state.hidden:
                gone.append(key)
        self._store.delete_objects(gone)
        return len(gone)

    def _build_next(self, commit: Commit, before: DatasetState) -> DatasetState:
        kept_files, replaced = self._split_files(commit, before)
        still_there = {
            key.removeprefix(f"{self._root}/") for key, _, _ in self._store.list_objects(self._root)
        }
        paths = [item.path for item in commit.added if item.path not in still_there]
        if paths:
            shown_path = self._store.address.shown_path
            text = f"{shown_path}: {paths[0]} was removed before its commit: run the step again"
            raise DatasetProblem("file_conflict", text)
        added_columns = dict(before.added_columns) if kept_files else {}
        if commit.added_columns:
            added_columns[commit.identity] = commit.added_columns
        return DatasetState(
            number=before.number + 1,
            commit=commit.identity,
            files=[*kept_files, *commit.added],
            hidden=[path for path in (*before.hidden, *replaced) if path in still_there],
            commits=[*before.commits, commit.identity][-_REMEMBERED:],
            schema=commit.schema,
            partition_by=commit.partition_by,
            added_columns=added_columns,
        )

    def _split_files(
        self, commit: Commit, before: DatasetState
    ) -> tuple[list[DataFile], list[str]]:
        """Return the files that stay, and the paths of those that are replaced.

        Files of other writers are there as long as these leave them: no commit names them.
        """
        visible = list_visible_files(self._store, self._root, before)
        match commit.mode:
            case "error":
                if visible:
                    refuse_existing(self._store.address.shown_path, visible[0].path)
                return [], []
            case "overwrite":
                return [], [item.path for item in visible]
            case "overwrite_partitions":
                partitions = {_freeze_values(item.values) for item in commit.added}
                paths = [item.path for item in visible if _freeze_values(item.values) in partitions]
                return [file for file in before.files if file.path not in set(paths)], paths
            case _:
                return before.files, []

    def _finish_commit(self, after: DatasetState) -> None:
        """Remove what was replaced, and tell other readers that the files are whole."""
        self._store.delete_objects([f"{self._root}/{path}" for path in after.hidden])
        self._store.put_object(f"{self._root}/{SUCCESS_NAME}", b"")

    def _build_key(self, number: int) -> str:
        return f"{self._root}/{LOG_FOLDER}/{number:020d}.json"


def remove_dead_files(
    store: OpenStore, root: str, identity: str, named_keys: Collection[str]
) -> None:
    """Remove the files of a commit's attempts that it does not name; raises `DatasetProblem`.

    Once it is there none of its attempts can commit any more. Keys are without a slash in front.
    """
    dead_keys = [
        key
        for key, _, _ in store.list_objects(root)
        if (match := _OWN_NAME.search(key)) is not None
        and match["commit"] == identity[:16]
        and key.lstrip("/") not in named_keys
    ]
    store.delete_objects(dead_keys)


def refuse_existing(shown_path: str, existing_path: str) -> None:
    """Refuse to write where something is; raises `DatasetProblem`."""
    text = (
        f"{shown_path} holds data already ({existing_path}): choose output.mode: append, "
        "overwrite or overwrite_partitions"
    )
    raise DatasetProblem("validation", text)


def list_visible_files(store: OpenStore, root: str, state: DatasetState | None) -> list[DataFile]:
    """List the data files below a root: what a commit names, and files of other writers.

    Names that begin with `_` or `.` are no data, as everywhere.
    """
    state = state or DatasetState()
    committed_files = {file.path: file for file in state.files}
    hidden = set(state.hidden)
    data_files: list[DataFile] = []
    for key, size, _ in store.list_objects(root):
        path = key.removeprefix(f"{root}/")
        if path in committed_files:
            data_files.append(committed_files[path])
        elif path not in hidden and not _OWN_NAME.search(path) and _holds_data(path, size):
            data_files.append(DataFile(path=path, size_bytes=size, values=read_folder_values(path)))
    if len(data_files) < len(committed_files):
        missing_path = min(committed_files.keys() - {data_file.path for data_file in data_files})
        shown_key = store.address.show_key(f"{root}/{missing_path}")
        text = f"the committed file {shown_key} is gone: write the dataset anew"
        raise DatasetProblem("not_found", text)
    return data_files


def _holds_data(path: str, size: int) -> bool:
    """Tell whether a file may have rows: an empty one of lines has none, others are cut off."""
    return is_data_path(path) and (size > 0 or datasets.find_format(path) in _NEVER_EMPTY)


def is_data_path(path: str) -> bool:
    """Tell whether no part of a path begins with `_` or `.`, apart from `_name=value` folders."""
    return not any(
        part.startswith(".") or (part.startswith("_") and "=" not in part)
        for part in path.split("/")
    )


def read_folder_values(path: str) -> dict[str, str | None]:
    """Read the values of `name=value` folders, in their order."""
    values: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, sign, text = part.partition("=")
        if sign and name:
            values[unescape_value(name) or name] = unescape_value(text)
    return values


_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.,:+ -]")


def escape_value(text: str | None) -> str:
    """Write a value as the name of a folder, as Hive does; no folder tells "" from null."""
    if text is None:
        return _NULL_FOLDER
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), text)


def unescape_value(text: str) -> str | None:
    """Read a value from the name of a folder."""
    if text == _NULL_FOLDER:
        return None
    data = text.encode()
    plain = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), data)
    return plain.decode("utf-8", "replace")


def _freeze_values(values: Mapping[str, str | None]) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted(values.items()))
