"""What a source of files is to the executors that read it: pieces, columns, and no secret."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from msgspec import Struct, structs

from noetl_playbook.model.datasets import DatasetSource
from noetl_storage.arrow import table_schema
from noetl_storage.arrow.table_schema import IncompatibleTypes
from noetl_worker.datasets import column_types, csv_rows, lake_loader, source_files
from noetl_worker.datasets.address import DatasetAddress, OpenStore
from noetl_worker.datasets.column_types import TextShape
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.file_rows import FilePiece, FileReader, TableState
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.source_files import SourceFiles

# A piece is worth a task of its own.
PIECE_BYTES = 64 * 1024 * 1024
_DOCUMENTS = ("json", "ndjson")
# Formats of which some columns are read without the others.
COLUMNAR = frozenset({"parquet", "orc", "arrow", "iceberg"})


class ReadPlan(Struct, frozen=True, kw_only=True):
    """A source whose files are found; `schema` is Arrow's, in base64.

    `guessed` is the schema that was inferred from CSV, as a playbook would write it. `state` is
    that of an Iceberg table.
    """

    address: DatasetAddress
    source: DatasetSource
    format: str
    schema: str
    pieces: list[FilePiece]
    guessed: str | None = None
    state: TableState | None = None

    @property
    def size_bytes(self) -> int:
        """Add up the bytes that are read."""
        return sum(piece.size_bytes for piece in self.pieces)


def encode_schema(schema: pa.Schema) -> str:
    """Write a schema as a plan carries it."""
    return b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Read a schema of a plan."""
    return pa.ipc.read_schema(pa.py_buffer(b64decode(text)))


def build_read_plan(
    address: DatasetAddress,
    source: DatasetSource,
    account: Mapping[str, Any] | None,
    catalog: Mapping[str, Any] | None = None,
) -> ReadPlan:
    """Find the files of a source and their columns; raises `DatasetProblem`. It blocks.

    `catalog` are the arguments of a connection to the catalog of an Iceberg table.
    """
    if source.iceberg is not None:
        iceberg = lake_loader.load_iceberg()
        schema, pieces, state = iceberg.plan_scan(address, account, source, catalog)
        return ReadPlan(
            address=address,
            source=source,
            format="iceberg",
            schema=encode_schema(schema),
            pieces=pieces,
            state=state,
        )
    store = OpenStore(address, account)
    files = _find_files(store, address, source, account)
    if files.has_grown:
        source = structs.replace(source, merge_schema=True)
    reader = FileReader(store, source, files.format)
    schema, guessed = _find_schema(reader, source, files)
    if source.types:
        schema = _set_types(schema, source.types)
    if source.columns:
        schema = _select_columns(schema, source.columns, address)
    pieces = [
        piece for file in files.files for piece in reader.list_pieces(file, bytes_max=PIECE_BYTES)
    ]
    return ReadPlan(
        address=address,
        source=source,
        format=files.format,
        schema=encode_schema(schema),
        pieces=pieces,
        guessed=guessed,
    )


def build_arrival_plan(
    address: DatasetAddress, source: DatasetSource, account: Mapping[str, Any] | None
) -> ReadPlan:
    """Find the columns of files that arrive; raises `DatasetProblem`. It blocks.

    No file is in the plan. Where none is there yet, the schema has to be written out.
    """
    try:
        return structs.replace(build_read_plan(address, source, account), pieces=[])
    except DatasetProblem as problem:
        if problem.kind != "not_found":
            raise
        if source.format is None or source.schema in (None, "infer", "text"):
            text = (
                f"no file has arrived at {address.shown_path} that tells the columns: give "
                "'format' and 'schema', as {format: ndjson, schema: \"id BIGINT, at TIMESTAMP\"}"
            )
            raise DatasetProblem("not_found", text) from problem
    kinds = column_types.parse_ddl(str(source.schema))
    schema = pa.schema([pa.field(name, kind) for name, kind in kinds.items()])
    return ReadPlan(
        address=address,
        source=source,
        format=source.format,
        schema=encode_schema(schema),
        pieces=[],
    )


def narrow_plan(plan: ReadPlan, columns: frozenset[str]) -> ReadPlan | None:
    """Return a plan that reads fewer columns, None where its files are read whole anyway.

    Of no columns the first stays: a row has at least one.
    """
    if plan.format not in COLUMNAR:
        return None
    schema = decode_schema(plan.schema)
    fields = [field for field in schema if field.name in columns] or [schema.field(0)]
    if len(fields) == len(schema):
        return None
    return structs.replace(plan, schema=encode_schema(pa.schema(fields)))


def _find_files(
    store: OpenStore,
    address: DatasetAddress,
    source: DatasetSource,
    account: Mapping[str, Any] | None,
) -> SourceFiles:
    if source.delta is None:
        return source_files.find_source_files(store, source.format)
    schema, files = lake_loader.load_delta().list_table_files(address, account, source)
    names = list(files[0].values) if files else []
    return SourceFiles(
        format="parquet", files=files, folder_names=names, schema=encode_schema(schema)
    )


def _find_schema(
    reader: FileReader, source: DatasetSource, source_files: SourceFiles
) -> tuple[pa.Schema, str | None]:
    declared_types = None
    if source.schema not in (None, "infer", "text"):
        declared_types = column_types.parse_ddl(str(source.schema))
    if source_files.schema is not None and declared_types is None and source_files.format != "csv":
        return decode_schema(source_files.schema), None
    if not source_files.files:
        if source_files.schema is None:
            raise DatasetProblem("not_found", "the dataset has no files")
        return decode_schema(source_files.schema), None
    if source_files.format == "csv":
        return _find_csv_schema(reader, source, source_files, declared_types)
    schema = _find_own_schema(reader, source, source_files)
    if declared_types is None:
        return _with_folders(schema, source_files, {}), None
    # Documents may leave a column out; files with columns may not.
    if source_files.format not in _DOCUMENTS:
        folder_names = source_files.folder_names
        _check_known([name for name in declared_types if name not in folder_names], schema.names)
    declared_fields = [pa.field(name, kind) for name, kind in declared_types.items()]
    names = set(declared_types)
    return pa.schema(
        [
            *declared_fields,
            *(
                folder
                for folder in _with_folders(schema, source_files, {})
                if folder.name not in names
            ),
        ]
    ), None


def _find_own_schema(
    reader: FileReader, source: DatasetSource, source_files: SourceFiles
) -> pa.Schema:
    """Return the columns of the first file, or of all."""
    first = reader.read_schema(source_files.files[0])
    # Documents have no schema that all files share.
    if not source.merge_schema and source_files.format not in _DOCUMENTS:
        return first
    kinds = {field.name: field.type for field in first}
    for file in source_files.files[1:]:
        for field in reader.read_schema(file):
            before = kinds.get(field.name)
            try:
                kinds[field.name] = (
                    field.type
                    if before is None
                    else table_schema.unify_types(field.name, before, field.type)
                )
            except IncompatibleTypes as problem:
                raise DatasetProblem("schema", f"{file.path}: {problem}") from problem
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items()])


def _find_csv_schema(
    reader: FileReader,
    source: DatasetSource,
    source_files: SourceFiles,
    declared_types: dict[str, pa.DataType] | None,
) -> tuple[pa.Schema, str | None]:
    # Headers are read of all files where each may have columns of its own.
    is_merged = source.merge_schema and source.csv.header
    header_files = source_files.files if is_merged else source_files.files[:1]
    headers = [reader.read_schema(file) for file in header_files]
    names = list(dict.fromkeys(name for header in headers for name in header.names))
    if declared_types is not None:
        if not source.csv.header:
            _check_count(names, declared_types)
        file_columns = [name for name in declared_types if name not in source_files.folder_names]
        if is_merged:
            _check_known(file_columns, names)
        schema = pa.schema([pa.field(name, declared_types[name]) for name in file_columns])
        return _with_folders(schema, source_files, declared_types), None
    if source.schema == "text":
        text_schema = pa.schema([pa.field(name, pa.string()) for name in names])
        return _with_folders(text_schema, source_files, {}), None
    shapes = {name: TextShape() for name in names}
    for file in source_files.files:
        csv_file = reader.describe_csv(file)
        for batch in csv_rows.iterate_text_batches(csv_file, Rejects()):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                shapes.setdefault(name, TextShape()).add_texts(column)
    kinds = column_types.guess_types(shapes)
    schema = pa.schema([pa.field(name, kind) for name, kind in kinds.items()])
    return _with_folders(schema, source_files, {}), column_types.describe_types(list(kinds), kinds)


def _check_known(declared_names: list[str], names: list[str]) -> None:
    missing = [name for name in declared_names if name not in names]
    if missing:
        text = (
            f"the files have no column '{missing[0]}' of the schema: they have "
            f"{', '.join(names[:20])}"
        )
        raise DatasetProblem("schema", text)


def _check_count(names: list[str], declared_types: dict[str, pa.DataType]) -> None:
    if len(names) != len(declared_types):
        text = (
            f"the file has {len(names)} columns and no header, the schema has {len(declared_types)}"
        )
        raise DatasetProblem("schema", text)


def _with_folders(
    schema: pa.Schema, source_files: SourceFiles, declared_types: Mapping[str, pa.DataType]
) -> pa.Schema:
    """Add the columns of the folders, texts unless a schema says otherwise."""
    for name in source_files.folder_names:
        field = pa.field(name, declared_types.get(name, pa.string()))
        index = schema.get_field_index(name)
        if index >= 0:
            schema = schema.remove(index)
        schema = schema.append(field)
    return schema


def _set_types(schema: pa.Schema, types: Mapping[str, str]) -> pa.Schema:
    kinds = table_schema.parse_column_kinds(list(types), list(types.values()))
    missing = [name for name in kinds if name not in schema.names]
    if missing:
        text = f"'types' names '{missing[0]}', which is no column: {', '.join(schema.names[:20])}"
        raise DatasetProblem("schema", text)
    return pa.schema([pa.field(field.name, kinds.get(field.name, field.type)) for field in schema])


def _select_columns(
    schema: pa.Schema, columns: tuple[str, ...], address: DatasetAddress
) -> pa.Schema:
    missing = [name for name in columns if name not in schema.names]
    if missing:
        known_names = ", ".join(schema.names[:20])
        text = f"{address.shown_path} has no column '{missing[0]}': it has {known_names}"
        raise DatasetProblem("schema", text)
    return pa.schema([schema.field(name) for name in columns])
