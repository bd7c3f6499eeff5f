"""Delta tables: read by their files, written in one commit that carries the task's identity.

The log of the table is read and written by delta-rs; executors read and write Parquet files. A
commit has the identity of its task as an application transaction, so that a repeated attempt finds
that it was made.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from noetl_contracts import codec
from noetl_playbook.model.datasets import DatasetSink, DatasetSource
from noetl_playbook.templates.output_forms import sql_ident
from noetl_worker.datasets import address as addresses
from noetl_worker.datasets import commit_log, sink_report, upserts
from noetl_worker.datasets.address import DatasetAddress, OpenStore
from noetl_worker.datasets.commit_log import DataFile
from noetl_worker.datasets.file_writer import WriteScope
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.sink_report import SinkReport

_REPORT = "noetl"
# What a commit that adds columns tells of them.
_COLUMNS = "noetl_columns"
# Features of tables whose rows are not those of their files.
_UNREADABLE = frozenset({"deletionVectors", "columnMapping"})
_RACES_MAX = 20
_HISTORY_MAX = 1_000
_LOG_ENTRY = re.compile(r"/_delta_log/\d{20}\.json$")
# So many commits of others may come between a task's commit and the look for it.
_ENTRIES_MAX = 200


def open_table(
    address: DatasetAddress, account: Mapping[str, Any] | None, *, as_of: str | None = None
) -> DeltaTable | None:
    """Open a table, None where there is none; raises `DatasetProblem`."""
    version = int(as_of) if as_of is not None and as_of.isdigit() else None
    try:
        table = DeltaTable(
            _build_uri(address), version=version, storage_options=_build_options(address, account)
        )
        if as_of is not None and version is None:
            table.load_as_version(as_of)
    except TableNotFoundError:
        return None
    except ValueError as problem:
        text = f"{address.shown_path}: as_of {as_of!r:.40} is no version and no moment: {problem}"
        raise DatasetProblem("validation", text) from problem
    except (DeltaError, OSError) as problem:
        raise _translate_error(address, problem) from problem
    features = _UNREADABLE & set(table.protocol().reader_features or ())
    if features:
        text = f"{address.shown_path} has {min(features)}, which is not read: rewrite it without"
        raise DatasetProblem("config", text)
    return table


def list_table_files(
    address: DatasetAddress, account: Mapping[str, Any] | None, source: DatasetSource
) -> tuple[pa.Schema, list[DataFile]]:
    """Return the columns and files of a table; the files' paths are keys of the store.

    Raises `DatasetProblem`.
    """
    table = open_table(address, account, as_of=source.as_of)
    if table is None:
        raise DatasetProblem("not_found", f"there is no Delta table at {address.shown_path}")
    root = address.path.rstrip("/")
    files = [
        DataFile(
            path=f"{root}/{file.path}",
            size_bytes=file.size_bytes,
            row_count=file.row_count,
            values=file.values,
        )
        for file in _list_files(table)
    ]
    return pa.schema(table.schema().to_arrow()), files


class DeltaSink:
    """A Delta table as the target of a task; every method blocks, and raises `DatasetProblem`."""

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
        self._address = address
        self._sink = sink
        self._account = account
        self._identity = identity
        self._attempt = attempt
        self._now_ms = int(now.timestamp() * 1000)
        self._root = address.path.rstrip("/")
        self._store = OpenStore(address, account)
        self._added_columns: list[str] = []

    @property
    def write_scope(self) -> WriteScope:
        """Return whose files are written."""
        return WriteScope(root=self._root, identity=self._identity, attempt=self._attempt)

    def find_earlier(self) -> SinkReport | None:
        """Return what an earlier attempt has committed."""
        table = open_table(self._address, self._account)
        if table is None:
            return None
        if table.transaction_version(self._identity) is not None:
            return self._finish_commit(self._find_report(table))
        if self._sink.mode == "error":
            text = (
                f"{self._address.shown_path} is a table already: choose output.mode: append, "
                "overwrite, overwrite_partitions or upsert"
            )
            raise DatasetProblem("validation", text)
        columns = tuple(table.metadata().partition_columns)
        if self._sink.partition_by not in ((), columns):
            text = f"{self._address.shown_path} is partitioned by {', '.join(columns) or 'nothing'}"
            raise DatasetProblem("validation", text)
        return None

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Return the columns of the table's folders, or of those that it will have."""
        table = open_table(self._address, self._account)
        if table is None:
            return self._sink.partition_by
        return tuple(table.metadata().partition_columns)

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse rows of other columns or types than those of the table."""
        table = open_table(self._address, self._account)
        moments = [
            name
            for name in self.partition_by
            if name in schema.names and pa.types.is_timestamp(schema.field(name).type)
        ]
        if moments:
            text = f"column '{moments[0]}' is a moment, which names no folder of Delta: use a date"
            raise DatasetProblem("schema", f"{self._address.shown_path}: {text}")
        if table is None or self._sink.mode == "overwrite":
            return
        before = {field.name: field.type for field in table.schema().fields}
        after = {field.name: field.type for field in self._convert_schema(schema).fields}
        if self._sink.may_grow:
            is_whole, shown_path = self._sink.mode == "upsert", self._address.shown_path
            sink_report.check_evolution(shown_path, before, after, is_whole=is_whole)
            return
        sink_report.check_columns(self._address.shown_path, before, after)

    def commit_files(self, files: list[DataFile], schema: pa.Schema) -> SinkReport:
        """Make files a part of the table in one commit, after one that adds their columns."""
        self._added_columns = self._add_columns(schema) if self._sink.may_grow else []
        if self._sink.mode == "upsert" and open_table(self._address, self._account) is not None:
            return self._finish_commit(self._merge_files(files, schema))
        for _ in range(_RACES_MAX):
            table = open_table(self._address, self._account)
            if table is not None and table.transaction_version(self._identity) is not None:
                return self._finish_commit(self._find_report(table))
            report = self._build_report(0 if table is None else table.version() + 1, files)
            try:
                self._commit_actions(table, files, schema, report)
            except CommitFailedError:
                continue
            except DeltaError as problem:
                if table is None and open_table(self._address, self._account) is not None:
                    continue
                raise _translate_error(self._address, problem) from problem
            return self._finish_commit(report)
        text = f"{self._address.shown_path}: others have committed first: run the step again"
        raise DatasetProblem("file_conflict", text)

    def _add_columns(self, schema: pa.Schema) -> list[str]:
        """Give the table the columns that it lacks; return all that attempts of this task added."""
        for _ in range(_RACES_MAX):
            table = open_table(self._address, self._account)
            if table is None:
                return []
            names = {field.name for field in table.schema().fields}
            fields = sink_report.list_new_fields(names, schema)
            if not fields:
                return self._list_added_columns(table)
            added = {"identity": self._identity, "columns": sink_report.show_fields(fields)}
            try:
                table.alter.add_columns(
                    list(self._convert_schema(pa.schema(fields)).fields),
                    commit_properties=CommitProperties(custom_metadata={_COLUMNS: added}),
                )
            except CommitFailedError:
                continue
            except (DeltaError, ValueError) as problem:
                raise _translate_error(self._address, problem) from problem
        text = f"{self._address.shown_path}: others change its columns: run the step again"
        raise DatasetProblem("file_conflict", text)

    def _list_added_columns(self, table: DeltaTable) -> list[str]:
        entries = [entry.get(_COLUMNS) for entry in table.history(_HISTORY_MAX)]
        return [
            column
            for entry in reversed(entries)
            if isinstance(entry, dict) and entry.get("identity") == self._identity
            for column in entry["columns"]
        ]

    def _build_report(self, version: int, files: list[DataFile]) -> SinkReport:
        return sink_report.build_report(
            self._address.shown_path, version, files, added_columns=self._added_columns
        )

    def _commit_actions(
        self, table: DeltaTable | None, files: list[DataFile], schema: pa.Schema, report: SinkReport
    ) -> None:
        add_actions = [self._build_add(file) for file in files]
        properties = self._build_properties(report)
        if table is None:
            create_table_with_add_actions(
                _build_uri(self._address),
                self._convert_schema(schema),
                add_actions,
                mode="error",
                partition_by=list(self._sink.partition_by),
                storage_options=_build_options(self._address, self._account),
                commit_properties=properties,
            )
            return
        remove_actions = [self._build_remove(item) for item in self._list_replaced(table, files)]
        table.create_write_transaction(
            [*add_actions, *remove_actions],
            "append",
            # Rows may lack columns that others have brought.
            table.schema() if self._sink.may_grow else self._convert_schema(schema),
            partition_by=list(table.metadata().partition_columns),
            commit_properties=properties,
        )

    def _list_replaced(self, table: DeltaTable, files: list[DataFile]) -> list[DataFile]:
        match self._sink.mode:
            case "overwrite":
                return _list_files(table)
            case "overwrite_partitions":
                written_partitions = {tuple(sorted(file.values.items())) for file in files}
                return [
                    file
                    for file in _list_files(table)
                    if tuple(sorted(file.values.items())) in written_partitions
                ]
            case _:
                return []

    def _merge_files(self, files: list[DataFile], schema: pa.Schema) -> SinkReport:
        """Merge rows by their key; delta-rs rewrites the files that hold some of them."""
        table = open_table(self._address, self._account)
        assert table is not None, "the caller has looked"
        if table.transaction_version(self._identity) is not None:
            return self._find_report(table)
        shown_path = self._address.shown_path
        rows = upserts.read_written(
            self._store, files, schema, root=self._root, shown_path=shown_path
        )
        upserts.check_unique_keys(rows, self._sink.key, shown_path)
        names = [sql_ident(key) for key in self._sink.key]
        condition = " AND ".join(f"target.{name} = source.{name}" for name in names)
        report = self._build_report(table.version() + 1, files)
        try:
            (
                table.merge(
                    rows,
                    condition,
                    source_alias="source",
                    target_alias="target",
                    commit_properties=self._build_properties(report),
                )
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute()
            )
        except (DeltaError, ValueError) as problem:
            raise _translate_error(self._address, problem) from problem
        # Their rows are in files of the table's own.
        self._store.delete_objects([f"{self._root}/{file.path}" for file in files])
        return report

    def _finish_commit(self, report: SinkReport) -> SinkReport:
        """Remove what dead attempts of this task have written beside its commit."""
        added_keys = self._read_added_keys()
        if added_keys is not None:
            commit_log.remove_dead_files(self._store, self._root, self._identity, added_keys)
        return report

    def _read_added_keys(self) -> set[str] | None:
        """Return the keys of the files that this task's commit has added, None when it is not near.

        They are read from the log: the history numbers its entries by the latest version that it
        saw, and another writer may have committed since.
        """
        entries = [
            key
            for key, _, _ in self._store.list_objects(f"{self._root}/_delta_log/")
            if _LOG_ENTRY.search(key)
        ]
        for key in reversed(entries[-_ENTRIES_MAX:]):
            lines = self._store.read_object(key).splitlines()
            actions = [codec.decode_json(line) for line in lines if line.strip()]
            if any(action.get("txn", {}).get("appId") == self._identity for action in actions):
                root = self._root.lstrip("/")
                paths = (unquote(action["add"]["path"]) for action in actions if "add" in action)
                return {f"{root}/{path}" for path in paths}
        return None

    def _find_entry(self) -> dict[str, Any] | None:
        """Return what the history says of this task's commit; None when it lies too far back."""
        table = open_table(self._address, self._account)
        for entry in [] if table is None else table.history(_HISTORY_MAX):
            report = entry.get(_REPORT)
            if isinstance(report, dict) and report.get("identity") == self._identity:
                return entry
        return None

    def _find_report(self, table: DeltaTable) -> SinkReport:
        entry = self._find_entry()
        if entry is not None:
            about = {key: value for key, value in entry[_REPORT].items() if key != "identity"}
            return codec.decode_as(codec.encode_json({**about, "is_repeated": True}), SinkReport)
        return sink_report.build_report(
            self._address.shown_path, table.version(), [], is_repeated=True
        )

    def _build_properties(self, report: SinkReport) -> CommitProperties:
        about = {"identity": self._identity, **codec.to_builtins(report)}
        return CommitProperties(
            custom_metadata={_REPORT: about},
            app_transactions=[Transaction(self._identity, 1)],
        )

    def _build_add(self, file: DataFile) -> AddAction:
        return AddAction(
            path=file.path,
            size=file.size_bytes,
            partition_values=file.values,
            modification_time=self._now_ms,
            data_change=True,
            stats=codec.encode_text({"numRecords": file.row_count or 0}),
        )

    def _build_remove(self, file: DataFile) -> RemoveAction:
        return RemoveAction(
            file.path,
            True,  # noqa: FBT003 - the signature of delta-rs
            self._now_ms,
            file.size_bytes,
            dict(file.values),
        )

    def _convert_schema(self, schema: pa.Schema) -> Schema:
        try:
            return Schema.from_arrow(schema)
        except (DeltaError, ValueError, TypeError) as problem:
            text = f"{self._address.shown_path}: a column has a type that Delta lacks: {problem}"
            raise DatasetProblem("schema", text) from problem


def _list_files(table: DeltaTable) -> list[DataFile]:
    files = pa.table(table.get_add_actions(flatten=False))
    partitions = (
        _write_partition_texts(files["partition"].combine_chunks())
        if "partition" in files.column_names
        else [{}] * files.num_rows
    )
    columns = (files[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    return [
        DataFile(path=unquote(path), size_bytes=size, row_count=count, values=values)
        for path, size, count, values in zip(*columns, partitions, strict=True)
    ]


def _write_partition_texts(partitions: pa.StructArray) -> list[dict[str, str | None]]:
    if isinstance(partitions, pa.ChunkedArray):
        partitions = pa.concat_arrays(partitions.chunks)
    names = [field.name for field in partitions.type]
    texts = [partitions.field(name).cast(pa.string()).to_pylist() for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*texts, strict=True)]


def _build_uri(address: DatasetAddress) -> str:
    if address.scheme == "file":
        return address.path
    return f"s3://{address.bucket}/{address.path.rstrip('/')}"


def _build_options(
    address: DatasetAddress, account: Mapping[str, Any] | None
) -> dict[str, str] | None:
    if address.scheme == "file":
        return None
    account_options = addresses.build_account_options(address, account or {})
    names = {
        "access_key_id": "AWS_ACCESS_KEY_ID",
        "secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "session_token": "AWS_SESSION_TOKEN",
        "region": "AWS_REGION",
        "endpoint": "AWS_ENDPOINT_URL",
    }
    options = {names[key]: value for key, value in account_options.items()}
    is_plain = str(account_options.get("endpoint", "")).startswith("http://")
    return {**options, "AWS_ALLOW_HTTP": "true" if is_plain else "false"}


def _translate_error(address: DatasetAddress, problem: Exception) -> DatasetProblem:
    kind, reason = addresses.classify_store_text(str(problem))
    return DatasetProblem(kind, f"{address.shown_path}: {reason}")
