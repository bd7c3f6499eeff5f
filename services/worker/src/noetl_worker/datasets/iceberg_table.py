"""Iceberg tables of a catalog in PostgreSQL: planned and committed by pyiceberg.

Executors read with pyiceberg's own scan, and write Parquet files that one commit adds. A snapshot
carries the identity of its task, so that a repeated attempt finds that it was made.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy
import sqlalchemy.exc
from msgspec import structs
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    IsNull,
    LessThanOrEqual,
    Or,
)
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    ArrowScan,
    UnsupportedPyArrowTypeException,
    parquet_file_to_data_file,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile as TableFile
from pyiceberg.table import StaticTable, Table, TableProperties, Transaction

from noetl_contracts import codec
from noetl_playbook.model.datasets import DatasetSink, DatasetSource, LakeTable
from noetl_worker.datasets import address as addresses
from noetl_worker.datasets import commit_log, sink_report, text_casts, upserts
from noetl_worker.datasets.address import DatasetAddress, OpenStore
from noetl_worker.datasets.commit_log import DataFile
from noetl_worker.datasets.file_rows import FilePiece, TableState
from noetl_worker.datasets.file_writer import DatasetWriter, WriteScope
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.sink_report import SinkReport

_MARK = "noetl.commit"
_ADDED_COLUMNS = "noetl.added-columns"
_RACES_MAX = 20
# The task in the names of copies: Spark has no partition of this number.
_COPIES = 99_999_999
_DRIVER = "postgresql+psycopg2"
# Their signatures are those of models, which name every argument.
_EQUAL: Any = EqualTo
_IS_NULL: Any = IsNull
_AT_LEAST: Any = GreaterThanOrEqual
_AT_MOST: Any = LessThanOrEqual


def open_catalog(
    address: DatasetAddress, account: Mapping[str, Any] | None, catalog: Mapping[str, Any]
) -> Catalog:
    """Open a catalog in PostgreSQL by the arguments of a connection; raises `DatasetProblem`."""
    url = _build_url(catalog)
    properties = {
        "uri": url.render_as_string(hide_password=False),
        "warehouse": _build_uri(address),
        "init_catalog_tables": "true",
        **build_io_properties(address, account),
    }
    try:
        return SqlCatalog("noetl", **properties)
    except sqlalchemy.exc.SQLAlchemyError as problem:
        raise _translate_catalog(problem) from problem


def plan_scan(
    address: DatasetAddress,
    account: Mapping[str, Any] | None,
    source: DatasetSource,
    catalog: Mapping[str, Any],
) -> tuple[pa.Schema, list[FilePiece], TableState]:
    """Return the columns, the files and the state of a table; raises `DatasetProblem`."""
    assert source.iceberg is not None, "the caller has looked"
    table = _load_table(open_catalog(address, account, catalog), source.iceberg)
    if table is None:
        raise DatasetProblem("not_found", f"there is no Iceberg table {source.iceberg.name}")
    snapshot = _find_snapshot(table, source)
    missing = [name for name in source.columns if name not in table.schema().column_names]
    if missing:
        raise DatasetProblem("schema", f"{source.iceberg.name} has no column '{missing[0]}'")
    scan = table.scan(snapshot_id=snapshot, selected_fields=source.columns or ("*",))
    try:
        tasks = list(scan.plan_files())
    except (OSError, pa.ArrowException) as problem:
        raise _translate_file(source.iceberg.name, problem) from problem
    pieces = [
        FilePiece(
            file=DataFile(path=task.file.file_path, size_bytes=task.file.file_size_in_bytes),
            size_bytes=task.file.file_size_in_bytes,
        )
        for task in tasks
    ]
    schema = schema_to_pyarrow(scan.projection(), include_field_ids=False)
    return schema, pieces, TableState(metadata=table.metadata_location, snapshot=snapshot)


def iterate_files(
    pieces: list[FilePiece],
    schema: pa.Schema,
    *,
    address: DatasetAddress,
    account: Mapping[str, Any] | None,
    state: TableState,
) -> Iterator[pa.RecordBatch]:
    """Read files of a table, without the rows that were deleted; raises `DatasetProblem`."""
    paths = {piece.file.path for piece in pieces}
    try:
        table = StaticTable.from_metadata(
            state.metadata, properties=build_io_properties(address, account)
        )
        scan = table.scan(snapshot_id=state.snapshot, selected_fields=tuple(schema.names))
        tasks = [task for task in scan.plan_files() if task.file.file_path in paths]
        reader = ArrowScan(table.metadata, table.io, scan.projection(), AlwaysTrue())
        yield from reader.to_record_batches(tasks)
    except (OSError, pa.ArrowException) as problem:
        raise _translate_file(state.metadata, problem) from problem


class IcebergSink:
    """An Iceberg table as the target of a task; methods block, and raise `DatasetProblem`."""

    def __init__(
        self,
        address: DatasetAddress,
        sink: DatasetSink,
        account: Mapping[str, Any] | None,
        *,
        identity: str,
        attempt: str,
        now: datetime,  # noqa: ARG002 - of all sinks
        catalog: Mapping[str, Any],
    ) -> None:
        assert sink.iceberg is not None, "the caller has looked"
        self._address = address
        self._sink = sink
        self._account = account
        self._identity = identity
        self._attempt = attempt
        self._name = sink.iceberg.name
        self._lake_table = sink.iceberg
        self._catalog = open_catalog(address, account, catalog)
        self._store = OpenStore(address, account)

    @property
    def write_scope(self) -> WriteScope:
        """Return whose files are written, and where: below the table's folder."""
        folder = self._name.replace(".", "/")
        root = f"{self._address.path.rstrip('/')}/{folder}/data"
        return WriteScope(root=root, identity=self._identity, attempt=self._attempt)

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Return the columns by which the table is partitioned, or will be."""
        table = self._load_table()
        if table is None:
            return self._sink.partition_by
        schema = table.schema()
        fields = table.spec().fields
        for field in fields:
            if str(field.transform) != "identity":
                text = (
                    f"{self._name} is partitioned by {field.transform} of a column: only columns "
                    "themselves are written"
                )
                raise DatasetProblem("config", text)
        return tuple(schema.find_column_name(field.source_id) or "" for field in fields)

    def find_earlier(self) -> SinkReport | None:
        """Return what an earlier attempt has committed."""
        table = self._load_table()
        if table is None:
            return None
        if self._is_committed(table):
            return self._finish_commit(table)
        if self._sink.mode == "error" and table.current_snapshot() is not None:
            text = (
                f"{self._name} holds data already: choose output.mode: append, overwrite, "
                "overwrite_partitions or upsert"
            )
            raise DatasetProblem("validation", text)
        if self._sink.partition_by not in ((), self.partition_by):
            text = f"{self._name} is partitioned by {', '.join(self.partition_by) or 'nothing'}"
            raise DatasetProblem("validation", text)
        return None

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse rows of other columns or types than those of the table."""
        table = self._load_table()
        if table is None:
            return
        table_schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        before = {field.name: _as_iceberg(field.type) for field in table_schema}
        after = {field.name: _as_iceberg(field.type) for field in schema}
        if self._sink.may_grow:
            is_whole = self._sink.mode == "upsert"
            sink_report.check_evolution(self._name, before, after, is_whole=is_whole)
            return
        sink_report.check_columns(self._name, before, after, way_out="cast it")

    def commit_files(self, files: list[DataFile], schema: pa.Schema) -> SinkReport:
        """Make files a part of the table in one commit."""
        for _ in range(_RACES_MAX):
            table = self._load_table() or self._create_table(schema)
            if self._is_committed(table):
                return self._finish_commit(table)
            fields = self._list_new_fields(table, schema)
            try:
                self._commit_to_table(table, files, schema, fields)
            except CommitFailedException:
                continue
            except sqlalchemy.exc.SQLAlchemyError as problem:
                raise _translate_catalog(problem) from problem
            except OSError as problem:
                kind, reason = addresses.classify_store_text(str(problem))
                raise DatasetProblem(kind, f"{self._name}: {reason}") from problem
            except (ValueError, UnsupportedPyArrowTypeException) as problem:
                text = f"{self._name}: {' '.join(str(problem).split())[:400]}"
                raise DatasetProblem("schema", text) from problem
            self._finish_commit(table.refresh())
            return sink_report.build_report(
                self._name,
                _find_version(table),
                files,
                added_columns=sink_report.show_fields(fields),
            )
        text = f"{self._name}: others have committed first: run the step again"
        raise DatasetProblem("file_conflict", text)

    def _list_new_fields(self, table: Table, schema: pa.Schema) -> list[pa.Field]:
        if not self._sink.may_grow:
            return []
        return sink_report.list_new_fields(table.schema().column_names, schema)

    def _commit_to_table(
        self, table: Table, files: list[DataFile], schema: pa.Schema, fields: list[pa.Field]
    ) -> None:
        if self._sink.mode == "upsert" and files and table.current_snapshot() is not None:
            self._upsert_files(table, files, schema, fields)
            return
        paths, mark = self._list_uris(files), self._build_mark(fields)
        with table.transaction() as transaction:
            _add_columns(transaction, fields)
            replaced = self._build_overwrite_filter(files, schema)
            if replaced is not None and table.current_snapshot() is not None:
                transaction.delete(replaced, snapshot_properties=mark)
            if paths:
                transaction.add_files(paths, snapshot_properties=mark)
            else:
                transaction.set_properties({f"{_MARK}.{self._identity}": "empty"})

    def _build_mark(self, fields: list[pa.Field]) -> dict[str, str]:
        """Return what the snapshots of this task carry."""
        if not fields:
            return {_MARK: self._identity}
        columns = codec.encode_text(sink_report.show_fields(fields))
        return {_MARK: self._identity, _ADDED_COLUMNS: columns}

    def _upsert_files(
        self,
        table: Table,
        files: list[DataFile],
        schema: pa.Schema,
        fields: list[pa.Field],
    ) -> None:
        """Add files in the place of the rows that have their keys."""
        scope = self.write_scope
        key_schema = pa.schema([field for field in schema if field.name in self._sink.key])
        keys = upserts.read_written(
            self._store,
            files,
            key_schema if key_schema.names else schema,
            root=scope.root,
            shown_path=self._name,
            keeps_folders=True,
        )
        upserts.check_unique_keys(keys, self._sink.key, self._name)
        layout = structs.replace(self._sink, partition_by=self.partition_by)
        table_schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        writer = DatasetWriter(
            self._store, layout, structs.replace(scope, task=_COPIES), table_schema
        )
        replaced_files = _copy_other_rows(table, keys, writer.write_batch)
        copies = writer.finish_files()
        try:
            paths = self._list_uris([*files, *copies])
            with table.transaction() as transaction:
                _add_columns(transaction, fields)
                mark = self._build_mark(fields)
                _replace_files(transaction, table.io, replaced_files, paths, mark)
        except CommitFailedException:
            # The next commit begins with another state of the table.
            self._store.delete_objects([f"{scope.root}/{file.path}" for file in copies])
            raise

    def _list_uris(self, files: list[DataFile]) -> list[str]:
        return [f"{_build_uri(self._address, self.write_scope.root)}/{file.path}" for file in files]

    def _build_overwrite_filter(
        self, files: list[DataFile], schema: pa.Schema
    ) -> BooleanExpression | None:
        if self._sink.mode == "overwrite":
            return AlwaysTrue()
        if self._sink.mode != "overwrite_partitions":
            return None
        rows_filter: BooleanExpression | None = None
        for values in {tuple(file.values.items()) for file in files}:
            partition_filter: BooleanExpression = AlwaysTrue()
            for name, text in values:
                partition_filter = And(
                    partition_filter, _build_equal(name, text, schema.field(name).type)
                )
            rows_filter = (
                partition_filter if rows_filter is None else Or(rows_filter, partition_filter)
            )
        return rows_filter

    def _is_committed(self, table: Table) -> bool:
        marks = (snapshot.summary for snapshot in table.snapshots())
        if any(mark is not None and mark.get(_MARK) == self._identity for mark in marks):
            return True
        return f"{_MARK}.{self._identity}" in table.properties

    def _finish_commit(self, table: Table) -> SinkReport:
        """Remove what dead attempts of this task have written, and tell what its commit added."""
        named_uris = {
            entry.data_file.file_path
            for snapshot in table.snapshots()
            if snapshot.summary is not None and snapshot.summary.get(_MARK) == self._identity
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        }
        scope, start = self.write_scope, _build_uri(self._address, "/").rstrip("/")
        named_keys = {uri.removeprefix(start).lstrip("/") for uri in named_uris}
        commit_log.remove_dead_files(self._store, scope.root, self._identity, named_keys)
        return self._find_report(table)

    def _find_report(self, table: Table) -> SinkReport:
        """Tell what the commit of an earlier attempt has added, by the snapshot that it made."""
        added = {"added-data-files": 0, "added-records": 0, "added-files-size": 0}
        version, columns = 0, "[]"
        for snapshot in table.snapshots():
            about = snapshot.summary
            if about is None or about.get(_MARK) != self._identity:
                continue
            columns = about.get(_ADDED_COLUMNS) or columns
            version = snapshot.sequence_number or 0
            for key in added:
                added[key] += int(about.get(key) or 0)
        return SinkReport(
            path=self._name,
            version=version,
            file_count=added["added-data-files"],
            row_count=added["added-records"],
            size_bytes=added["added-files-size"],
            partition_count=0,
            is_repeated=True,
            added_columns=codec.decode_json(columns.encode()),
        )

    def _create_table(self, schema: pa.Schema) -> Table:
        with suppress(NamespaceAlreadyExistsError):
            self._catalog.create_namespace(tuple(self._name.split(".")[:-1]))
        folder = self.write_scope.root.removesuffix("/data")
        location = _build_uri(self._address, folder)
        transact = self._catalog.create_table_transaction
        try:
            # Its columns and its partitions are there at once, or another attempt's are.
            with (
                suppress(TableAlreadyExistsError, CommitFailedException),
                transact(self._name, schema=schema, location=location) as transaction,
                transaction.update_spec() as spec,
            ):
                for name in self._sink.partition_by:
                    spec.add_identity(name)
        except (ValueError, TypeError, UnsupportedPyArrowTypeException) as problem:
            text = f"{self._name}: a column has a type that Iceberg lacks: {problem}"
            raise DatasetProblem("schema", text) from problem
        table = self._load_table()
        assert table is not None, "it was made by this attempt or another"
        return table

    def _load_table(self) -> Table | None:
        return _load_table(self._catalog, self._lake_table)


def _copy_other_rows(
    table: Table, keys: pa.Table, write_batch: Callable[[pa.RecordBatch], None]
) -> list[TableFile]:
    """Write the rows of those files that hold some of the keys, without these; return the files.

    pyiceberg's own upsert compares rows in Python, a minute for a million of them. The files are
    read one after another, each whole.
    """
    reader = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    replaced_files = []
    for task in table.scan(row_filter=_build_range(keys)).plan_files():
        rows = reader.to_table([task])
        places = upserts.find_other_places(rows, keys)
        if len(places) == len(rows):
            continue
        replaced_files.append(task.file)
        for batch in rows.take(places).cast(schema).combine_chunks().to_batches():
            write_batch(batch)
    return replaced_files


def _add_columns(transaction: Transaction, fields: list[pa.Field]) -> None:
    """Give a table columns, in the commit that adds the first rows with them."""
    if fields:
        with transaction.update_schema() as update:
            update.union_by_name(pa.schema(fields))


def _replace_files(
    transaction: Transaction,
    io: FileIO,
    replaced_files: list[TableFile],
    paths: list[str],
    mark: dict[str, str],
) -> None:
    """Put files in the place of others, in one snapshot that carries a mark."""
    if transaction.table_metadata.name_mapping() is None:
        # Our files have no ids of columns.
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
    metadata = transaction.table_metadata
    with transaction.update_snapshot(snapshot_properties=mark).overwrite() as overwrite:
        for file in replaced_files:
            overwrite.delete_data_file(file)
        for path in paths:
            overwrite.append_data_file(parquet_file_to_data_file(io, metadata, path))


def _build_range(keys: pa.Table) -> BooleanExpression:
    """Return a condition that leaves out files whose statistics show other keys."""
    condition: BooleanExpression = AlwaysTrue()
    for name in keys.column_names:
        kind = keys.schema.field(name).type
        if pa.types.is_integer(kind) or pa.types.is_string(kind):
            bounds = pc.min_max(keys[name]).as_py()
            lower, upper = _AT_LEAST(name, bounds["min"]), _AT_MOST(name, bounds["max"])
            condition = And(condition, And(lower, upper))
    return condition


def _find_version(table: Table) -> int:
    snapshot = table.current_snapshot()
    return 0 if snapshot is None else snapshot.sequence_number or 0


def _build_url(catalog: Mapping[str, Any]) -> sqlalchemy.URL:
    if catalog.get("dsn"):
        return sqlalchemy.make_url(str(catalog["dsn"])).set(drivername=_DRIVER)
    return sqlalchemy.URL.create(
        _DRIVER,
        username=catalog.get("user"),
        password=catalog.get("password"),
        host=catalog.get("host"),
        port=catalog.get("port"),
        database=catalog.get("database"),
    )


def build_io_properties(
    address: DatasetAddress, account: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return how pyiceberg opens the files of a warehouse."""
    if address.scheme == "file":
        return {}
    account_options = addresses.build_account_options(address, account or {})
    names = {
        "access_key_id": "s3.access-key-id",
        "secret_access_key": "s3.secret-access-key",
        "session_token": "s3.session-token",
        "region": "s3.region",
        "endpoint": "s3.endpoint",
    }
    return {names[key]: value for key, value in account_options.items()}


def _load_table(catalog: Catalog, table: LakeTable) -> Table | None:
    try:
        return catalog.load_table(table.name)
    except NoSuchTableError:
        return None
    except (OSError, pa.ArrowException) as problem:
        raise _translate_file(table.name, problem) from problem
    except sqlalchemy.exc.SQLAlchemyError as problem:
        raise _translate_catalog(problem) from problem


def _find_snapshot(table: Table, source: DatasetSource) -> int | None:
    """Return the snapshot that `as_of` names: its number, its sequence, or a moment."""
    if source.as_of is None:
        return None
    text = source.as_of
    if text.isdigit():
        for snapshot in table.snapshots():
            if int(text) in (snapshot.snapshot_id, snapshot.sequence_number):
                return snapshot.snapshot_id
        raise DatasetProblem("not_found", f"{table.name()} has no version {text}")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as problem:
        reason = f"as_of {text!r:.40} is no version and no moment"
        raise DatasetProblem("validation", reason) from problem
    snapshot_at = table.snapshot_as_of_timestamp(int(moment.timestamp() * 1000))
    if snapshot_at is None:
        raise DatasetProblem("not_found", f"{table.name()} had no rows at {text}")
    return snapshot_at.snapshot_id


def _build_equal(name: str, text: str | None, kind: pa.DataType) -> BooleanExpression:
    if text is None:
        condition: BooleanExpression = _IS_NULL(name)
        return condition
    values, _ = text_casts.cast_texts(pa.array([text], pa.string()), kind)
    value = values[0].as_py()
    equal: BooleanExpression = _EQUAL(
        name, value if isinstance(value, bool | int | str) else str(value)
    )
    return equal


def _as_iceberg(kind: pa.DataType) -> pa.DataType:
    """Return the type that Iceberg keeps a type as."""
    types = pa.types
    if types.is_int8(kind) or types.is_int16(kind):
        return pa.int32()
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    return kind


def _build_uri(address: DatasetAddress, path: str | None = None) -> str:
    key = (address.path if path is None else path).rstrip("/")
    return f"file://{key}" if address.scheme == "file" else f"s3://{address.bucket}/{key}"


def _translate_file(table_name: str, problem: Exception) -> DatasetProblem:
    """Say what is wrong with a file of a table, its own or one of its metadata."""
    kind, reason = addresses.classify_store_text(str(problem))
    if isinstance(problem, FileNotFoundError):
        text = f"Iceberg table {table_name}: a file that it names is gone ({reason}): bring it back"
        return DatasetProblem("not_found", text)
    if isinstance(problem, pa.ArrowException) and kind == "storage_access":
        kind = "parse"
    return DatasetProblem(kind, f"Iceberg table {table_name}: {reason}")


def _translate_catalog(problem: Exception) -> DatasetProblem:
    reason = " ".join(str(getattr(problem, "orig", None) or problem).split())[:400]
    return DatasetProblem("db_connection", f"the Iceberg catalog cannot be used: {reason}")
