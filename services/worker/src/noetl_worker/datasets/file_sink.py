"""A dataset of files as the target of a task: what is checked first, and the commit at the end."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
from msgspec import structs

from noetl_contracts import codec
from noetl_playbook.model import datasets
from noetl_playbook.model.datasets import DatasetSink, DatasetSource
from noetl_worker.datasets import commit_log, read_plan, sink_report
from noetl_worker.datasets.address import PATTERN_SIGNS, DatasetAddress, OpenStore
from noetl_worker.datasets.commit_log import Commit, CommitLog, DataFile, DatasetState
from noetl_worker.datasets.file_rows import FileReader
from noetl_worker.datasets.file_writer import WriteScope
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.sink_report import SinkReport

_ANEW = ("overwrite", "error")


def build_commit_identity(key: str) -> str:
    """Name a commit by the key of its task's effect: the same in every attempt."""
    return codec.digest_hex(key.encode()).removeprefix("sha256:")[:32]


class FileSink:
    """Prepares and commits; every method blocks, and raises `DatasetProblem`."""

    def __init__(
        self,
        address: DatasetAddress,
        sink: DatasetSink,
        account: Mapping[str, Any] | None,
        *,
        identity: str,
        attempt: str,
        now: datetime,
    ) -> None:
        if PATTERN_SIGNS.search(address.path):
            text = f"{address.shown_path} is a pattern: a dataset is written into one folder"
            raise DatasetProblem("validation", text)
        self._store = OpenStore(address, account)
        self._sink = sink
        self._root = address.path.rstrip("/")
        self._log = CommitLog(self._store, self._root)
        self._attempt = attempt
        self._identity = identity
        self._now = now
        self._address = address

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Return the columns of the folders."""
        return self._sink.partition_by

    @property
    def write_scope(self) -> WriteScope:
        """Return whose files are written."""
        return WriteScope(root=self._root, identity=self._identity, attempt=self._attempt)

    def find_earlier(self) -> SinkReport | None:
        """Return what an earlier attempt has committed, else make room for this one."""
        state = self._log.read_state()
        if state is not None and self._identity in state.commits:
            self._log.remove_abandoned(self._now)
            return self._build_report(state, is_repeated=True)
        if self._sink.mode == "error":
            visible_files = commit_log.list_visible_files(self._store, self._root, state)
            if visible_files:
                commit_log.refuse_existing(self._address.shown_path, visible_files[0].path)
        if state is not None and self._sink.mode not in _ANEW:
            self._check_folders(state)
        return None

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse rows of other columns or types than those that are there."""
        state = self._log.read_state()
        if self._sink.mode in _ANEW:
            return
        if self._sink.may_grow:
            self._check_named_files(state)
        if state is None or state.schema is None or not state.files:
            self._check_foreign_file(schema, state)
            return
        before = {field.name: field.type for field in read_plan.decode_schema(state.schema)}
        after = {field.name: field.type for field in schema}
        if self._sink.may_grow:
            sink_report.check_evolution(self._address.shown_path, before, after, is_whole=False)
            return
        sink_report.check_columns(self._address.shown_path, before, after)

    def commit_files(self, files: list[DataFile], schema: pa.Schema) -> SinkReport:
        """Make files the next state of the dataset."""
        ordered = [field for field in schema if field.name not in self._sink.partition_by]
        folders = [schema.field(name) for name in self._sink.partition_by]
        state = self._log.append_commit(
            Commit(
                identity=self._identity,
                mode=self._sink.mode,
                added=files,
                schema=read_plan.encode_schema(pa.schema([*ordered, *folders])),
                partition_by=list(self._sink.partition_by),
            ),
            self._fit_columns if self._sink.may_grow else None,
        )
        self._log.remove_abandoned(self._now)
        return self._build_report(state, is_repeated=False)

    def _fit_columns(self, commit: Commit, state: DatasetState) -> Commit:
        """Give a commit the columns of the rows that stay, and tell of those that it adds."""
        if self._sink.mode in _ANEW or state.schema is None or not state.files:
            return commit
        before, after = (read_plan.decode_schema(text) for text in (state.schema, commit.schema))
        sink_report.check_evolution(
            self._address.shown_path,
            {field.name: field.type for field in before},
            {field.name: field.type for field in after},
            is_whole=False,
        )
        new_fields = sink_report.list_new_fields(before.names, after)
        folders = [field for field in before if field.name in self._sink.partition_by]
        own_fields = [field for field in before if field.name not in self._sink.partition_by]
        # Some files lack some of them, and their rows have null there.
        fields = [field.with_nullable(True) for field in (*own_fields, *new_fields)]  # noqa: FBT003 - Arrow's signature
        return structs.replace(
            commit,
            schema=read_plan.encode_schema(pa.schema([*fields, *folders])),
            added_columns=sink_report.show_fields(new_fields),
        )

    def _check_named_files(self, state: DatasetState | None) -> None:
        """Refuse to add columns beside files whose columns no commit tells."""
        named_paths = set() if state is None else {file.path for file in state.files}
        for file in commit_log.list_visible_files(self._store, self._root, state):
            if file.path not in named_paths:
                text = (
                    f"{self._address.shown_path}: {file.path} was not written by a task, so its "
                    "columns are not known and expect.schema.drift: evolve has nothing to add to: "
                    "write the folder anew from a source with merge_schema: true"
                )
                raise DatasetProblem("schema", text)

    def _check_foreign_file(self, schema: pa.Schema, state: DatasetState | None) -> None:
        """Refuse rows of other columns than the first file of another writer has.

        Of CSV it tells the names alone, and of lines of JSON nothing: any of them may lack some.
        """
        format_ = self._sink.format
        files = commit_log.list_visible_files(self._store, self._root, state)
        file = next((item for item in files if datasets.find_format(item.path) == format_), None)
        if file is None or format_ == "ndjson":
            return
        source = DatasetSource(format=format_, csv=self._sink.csv, schema="text")
        if format_ == "csv" and not self._sink.csv.header:
            return
        path = f"{self._root}/{file.path}"
        found = FileReader(self._store, source, format_).read_schema(
            structs.replace(file, path=path)
        )
        folders = self._sink.partition_by
        before = {f.name: _get_plain_type(f.type) for f in found if f.name not in folders}
        after = {f.name: _get_plain_type(f.type) for f in schema if f.name not in folders}
        if format_ == "csv":
            after = dict.fromkeys(after, pa.string())
        sink_report.check_columns(
            self._address.show_key(path),
            before,
            after,
            way_out="no task wrote that file: select its columns, with CAST to its types, or "
            "choose another folder or mode overwrite",
        )

    def _check_folders(self, state: DatasetState) -> None:
        if state.files and tuple(state.partition_by) != self._sink.partition_by:
            text = (
                f"{self._address.shown_path} has folders by "
                f"{', '.join(state.partition_by) or 'nothing'}, not by "
                f"{', '.join(self._sink.partition_by) or 'nothing'}: name the same columns in "
                "output.partition_by, or choose mode overwrite"
            )
            raise DatasetProblem("validation", text)

    def _build_report(self, state: DatasetState, *, is_repeated: bool) -> SinkReport:
        mark = f"-{self._identity[:16]}-"
        files = [file for file in state.files if mark in file.path]
        return sink_report.build_report(
            self._address.shown_path,
            state.number,
            files,
            is_repeated=is_repeated,
            added_columns=state.added_columns.get(self._identity, ()),
        )


def _get_plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without what writers choose for the same values: units, offsets, indexes."""
    if pa.types.is_dictionary(kind):
        return _get_plain_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind
