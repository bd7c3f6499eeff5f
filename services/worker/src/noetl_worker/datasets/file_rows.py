"""The rows of one file of a dataset, in Arrow batches with the columns of its folders."""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.json_values import list_repeated_names
from noetl_playbook.model.datasets import DatasetSource
from noetl_storage.arrow import row_tables, table_schema
from noetl_storage.arrow.table_schema import SchemaMismatch
from noetl_worker.datasets import (
    column_filters,
    column_types,
    csv_rows,
    exact_casts,
    json_rows,
    text_casts,
)
from noetl_worker.datasets.address import OpenStore
from noetl_worker.datasets.column_filters import ColumnFilter
from noetl_worker.datasets.commit_log import DataFile
from noetl_worker.datasets.csv_rows import CsvFile, Rejects
from noetl_worker.datasets.problems import DatasetProblem

BATCH_ROWS = 64 * 1024
# A JSON document that is one list is decoded as a whole.
_WHOLE_BYTES_MAX = 64 * 1024 * 1024
_CODEC_BY_SUFFIX = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


class FilePiece(Struct, frozen=True, kw_only=True):
    """A file, or some of the row groups of a Parquet file."""

    file: DataFile
    row_groups: list[int] | None = None
    size_bytes: int = 0


class TableState(Struct, frozen=True, kw_only=True):
    """A state of an Iceberg table, as executors find it: its metadata file, and a snapshot."""

    metadata: str
    snapshot: int | None = None


class FileReader:
    """Reads files of one source; every method raises `DatasetProblem`."""

    def __init__(self, store: OpenStore, source: DatasetSource, format_: str) -> None:
        self._store = store
        self._source = source
        self._format = format_

    def read_schema(self, file: DataFile) -> pa.Schema:
        """Return the columns of a file, all texts for CSV."""
        with self._name_file_in_errors(file.path):
            match self._format:
                case "parquet":
                    schema = pa.parquet.read_schema(self._store.open_object(file.path))
                    return _check_names(schema, self._build_shown_path(file.path))
                case "orc" | "arrow":
                    schema = self._open_fragment(file, None).physical_schema
                    return _check_names(schema, self._build_shown_path(file.path))
                case "csv":
                    names = csv_rows.read_column_names(self.describe_csv(file))
                    return pa.schema([pa.field(name, pa.string()) for name in names])
                case _:
                    return self._merge_schemas(file)

    def _merge_schemas(self, file: DataFile) -> pa.Schema:
        """Return the columns of all documents of a file: later ones may have more."""
        kinds: dict[str, pa.DataType] = {}
        for batch in self._iterate_documents(file):
            for field in batch.schema:
                before = kinds.get(field.name, field.type)
                kinds[field.name] = table_schema.unify_types(field.name, before, field.type)
        return pa.schema([pa.field(name, kind) for name, kind in kinds.items()])

    def describe_csv(self, file: DataFile) -> CsvFile:
        """Return what reads a file as CSV."""
        return CsvFile(
            shown_path=self._build_shown_path(file.path),
            open_file=lambda: self._open_unpacked(file.path),
            options=self._source.csv,
            on_bad_row=self._source.on_bad_row,
            names=self._list_names(file),
            may_lack_columns=self._source.merge_schema and self._source.csv.header,
        )

    def _list_names(self, file: DataFile) -> tuple[str, ...]:
        """Name the columns of a file without a header by the schema, if it is written out."""
        schema = self._source.schema
        if self._source.csv.header or schema in (None, "infer", "text"):
            return ()
        return tuple(
            name for name in column_types.parse_ddl(str(schema)) if name not in file.values
        )

    def iterate_batches(
        self,
        piece: FilePiece,
        schema: pa.Schema,
        rejects: Rejects,
        *,
        filters: Sequence[ColumnFilter] = (),
        condition: Any = None,
        whole: pa.Schema | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece with the columns of a schema.

        Rows that no filter takes may be left out, or not; so may those that a `condition` does not
        take, an expression of Arrow over the columns of `whole`.
        """
        own_schema = pa.schema([field for field in schema if field.name not in piece.file.values])
        with self._name_file_in_errors(piece.file.path):
            if condition is not None and whole is not None and self._format == "parquet":
                piece = self._select_groups(piece, condition, whole)
                if not piece.row_groups:
                    return
            for batch in self._iterate_own(piece, own_schema, rejects, filters):
                yield self._add_folders(batch, piece.file, schema)

    def list_pieces(self, file: DataFile, *, bytes_max: int) -> list[FilePiece]:
        """Cut a file into pieces of at most so many bytes, as far as its format can be cut."""
        if self._format != "parquet" or file.size_bytes <= bytes_max:
            return [FilePiece(file=file, size_bytes=file.size_bytes)]
        with self._name_file_in_errors(file.path):
            about = pa.parquet.read_metadata(self._store.open_object(file.path))
        pieces: list[FilePiece] = []
        groups: list[int] = []
        size = 0
        for number in range(about.num_row_groups):
            group = about.row_group(number)
            group_bytes = sum(
                group.column(index).total_compressed_size for index in range(group.num_columns)
            )
            if groups and size + group_bytes > bytes_max:
                pieces.append(FilePiece(file=file, row_groups=groups, size_bytes=size))
                groups, size = [], 0
            groups.append(number)
            size += group_bytes
        pieces.append(FilePiece(file=file, row_groups=groups, size_bytes=size))
        return pieces

    def _iterate_own(
        self,
        piece: FilePiece,
        schema: pa.Schema,
        rejects: Rejects,
        filters: Sequence[ColumnFilter],
    ) -> Iterator[pa.RecordBatch]:
        match self._format:
            case "parquet" | "orc" | "arrow":
                fragment = self._open_fragment(piece.file, piece.row_groups)
                physical = fragment.physical_schema
                condition = column_filters.build_expression(filters, physical, schema)
                if condition is not None and any(map(_holds_views, physical.types)):
                    # Arrow filters no rows of such columns; the statistics of row groups do.
                    if self._format == "parquet":
                        fragment = fragment.subset(filter=condition, schema=physical)
                    condition = None
                batches = fragment.to_batches(
                    schema=physical,
                    columns=[name for name in schema.names if name in physical.names],
                    filter=condition,
                    batch_size=BATCH_ROWS,
                    # What is decoded ahead is in memory.
                    batch_readahead=2,
                    fragment_readahead=1,
                    use_threads=False,
                )
            case "csv":
                file = self.describe_csv(piece.file)
                yield from csv_rows.iterate_typed_batches(file, schema, rejects)
                return
            case _:
                batches = self._iterate_documents(piece.file)
        for batch in batches:
            yield fit_batch(batch, schema, self._build_shown_path(piece.file.path))

    def _select_groups(self, piece: FilePiece, condition: Any, whole: pa.Schema) -> FilePiece:
        """Leave out row groups whose statistics rule a condition out."""
        fragment = self._open_fragment(piece.file, piece.row_groups)
        physical = fragment.physical_schema
        # A file of other types than those of the dataset leaves nothing out.
        for field in whole:
            index = physical.get_field_index(field.name)
            if index >= 0 and physical.field(index).type != field.type:
                group_ids = [group.id for group in fragment.row_groups]
                return structs.replace(piece, row_groups=group_ids)
        selected = fragment.subset(filter=condition, schema=whole)
        groups = [group.id for group in selected.row_groups]
        return structs.replace(piece, row_groups=groups)

    def _open_fragment(self, file: DataFile, row_groups: list[int] | None) -> Any:
        # It loads pandas: only workers that come here pay for that.
        files = importlib.import_module("pyarrow.dataset")
        file_stream = self._store.open_object(file.path)
        if self._format == "parquet":
            return files.ParquetFileFormat().make_fragment(file_stream, row_groups=row_groups)
        kinds = {"orc": files.OrcFileFormat, "arrow": files.IpcFileFormat}
        return kinds[self._format]().make_fragment(file_stream)

    def _iterate_documents(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        if self._format == "avro":
            yield from self._iterate_avro(file)
        elif self._format == "ndjson":
            shown_path = self._build_shown_path(file.path)
            for table in json_rows.iterate_tables(self._open_unpacked(file.path), shown_path):
                yield from table.combine_chunks().to_batches()
        else:
            yield from self._read_document(file)

    def _read_document(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        if file.size_bytes > _WHOLE_BYTES_MAX:
            raise self._build_large_problem(file, str(file.size_bytes))
        # What is packed may be far larger.
        data = self._open_unpacked(file.path).read(_WHOLE_BYTES_MAX + 1)
        if len(data) > _WHOLE_BYTES_MAX:
            raise self._build_large_problem(file, f"more than {_WHOLE_BYTES_MAX}")
        rows = codec.decode_exactly(data)
        rows = rows if isinstance(rows, list) else [rows]
        if not all(isinstance(row, dict) for row in rows):
            raise DatasetProblem(
                "parse", f"{self._build_shown_path(file.path)} is no list of mappings"
            )
        yield from row_tables.build_table(rows).to_batches()

    def _build_large_problem(self, file: DataFile, size: str) -> DatasetProblem:
        text = (
            f"{self._build_shown_path(file.path)} is one JSON document of {size} bytes, "
            f"{_WHOLE_BYTES_MAX} is the limit: write a mapping a line, as ndjson"
        )
        return DatasetProblem("payload_too_large", text)

    def _iterate_avro(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        fastavro = importlib.import_module("fastavro")
        rows: list[Any] = []
        schema: pa.Schema | None = None
        for row in fastavro.reader(self._store.open_object(file.path)):
            rows.append(row)
            if len(rows) == BATCH_ROWS:
                table = pa.Table.from_pylist(rows, schema=schema)
                schema = table.schema
                yield from table.to_batches()
                rows = []
        if rows or schema is None:
            yield from pa.Table.from_pylist(rows, schema=schema).to_batches()

    def _open_unpacked(self, key: str) -> pa.NativeFile:
        file_stream = self._store.open_object(key)
        codec_name = next(
            (_CODEC_BY_SUFFIX[end] for end in _CODEC_BY_SUFFIX if key.lower().endswith(end)), None
        )
        return (
            file_stream if codec_name is None else pa.CompressedInputStream(file_stream, codec_name)
        )

    def _add_folders(
        self, batch: pa.RecordBatch, file: DataFile, schema: pa.Schema
    ) -> pa.RecordBatch:
        if not file.values:
            return batch
        columns = []
        for field in schema:
            if field.name in file.values:
                value = pa.array([file.values[field.name]], pa.string())
                cast, wrong = text_casts.cast_texts(value, field.type)
                if wrong:
                    text = (
                        f"{self._build_shown_path(file.path)}: folder "
                        f"{field.name}={value[0].as_py()} is no {field.type}"
                    )
                    raise DatasetProblem("schema", text)
                columns.append(pa.repeat(cast[0], batch.num_rows))
            else:
                columns.append(batch.column(batch.schema.get_field_index(field.name)))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _build_shown_path(self, key: str) -> str:
        return self._store.address.show_key(key)

    def _name_file_in_errors(self, key: str) -> Any:
        return _translate_errors(self._store, key, self._build_shown_path(key), self._format)


@contextmanager
def _translate_errors(store: OpenStore, key: str, shown_path: str, format_: str) -> Iterator[None]:
    """Turn what readers raise into `DatasetProblem` that names the file."""
    with store.translate_errors(key):
        try:
            yield
        except SchemaMismatch as problem:
            raise DatasetProblem("schema", f"{shown_path}: {problem}") from problem
        except (pa.ArrowException, ValueError, EOFError, OSError) as problem:
            # What the system refuses has a number; what a decoder refuses has none.
            if isinstance(problem, OSError) and problem.errno is not None:
                raise
            text = f"{shown_path} does not read as {format_}: {problem}"
            raise DatasetProblem("parse", text[:600]) from problem


def _check_names(schema: pa.Schema, shown_path: str) -> pa.Schema:
    """Return a schema whose columns have different names; raises `DatasetProblem`."""
    if repeated_names := list_repeated_names(schema.names):
        text = (
            f"{shown_path} has several columns named '{repeated_names[0]}': write them under "
            "different names"
        )
        raise DatasetProblem("schema", text)
    return schema


def _holds_views(kind: pa.DataType) -> bool:
    """Tell whether a type is one of texts or bytes that are views, or has such inside."""
    types = pa.types
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return True
    return any(_holds_views(kind.field(index).type) for index in range(kind.num_fields))


def fit_batch(batch: pa.RecordBatch, schema: pa.Schema, path: str) -> pa.RecordBatch:
    """Give a batch the columns and types of a schema; what it lacks is null.

    Raises `DatasetProblem` that names the column.
    """
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(index)
        try:
            columns.append(exact_casts.cast_column(column, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
            text = (
                f"{path}: column '{field.name}' is {table_schema.format_arrow_type(column.type)}, "
                f"and {table_schema.format_arrow_type(field.type)} is wanted: {problem}"
            )
            raise DatasetProblem("schema", text) from problem
    return pa.RecordBatch.from_arrays(columns, schema=schema)
