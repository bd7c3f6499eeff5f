"""`spark.read.format("noetl")`: stored results as tables, read by the executors themselves."""

import math
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from noetl_contracts import codec, spread
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, PayloadRef
from noetl_contracts.spread import SPREAD_MEDIA_TYPE, Spread
from noetl_storage import encoding, row_tables
from noetl_storage.encoding import PARQUET_MEDIA_TYPE, Groups, PayloadUnreadable
from noetl_storage.table_schema import SchemaMismatch
from noetl_worker.spark import executors, fitting, frame_schema, tables
from noetl_worker.spark.executors import Home, Refused
from noetl_worker.spark.tables import TableWriter

NAME = "noetl"
PART = "_part"
_PARTITIONS = 8
_BATCH_ROWS = 10_000
# Smaller objects are not worth a task of their own.
_SLICE_BYTES = 8 * 1024 * 1024


def options_of(
    home: Home, refs: Sequence[PayloadRef], *, is_union: bool, partitions: int
) -> dict[str, str]:
    """Write the options of a read: addresses and digests, nothing secret."""
    return {
        "store": home.url,
        "tenant": home.tenant_id,
        "organization": home.organization_id,
        "references": codec.encode([msgspec.to_builtins(ref) for ref in refs]).decode(),
        "union": "true" if is_union else "false",
        "partitions": str(partitions),
    }


@dataclass
class Piece:
    """Some rows of one object: slice `index` of `count`; `part` is its number in a union."""

    ref: PayloadRef
    index: int = 0
    count: int = 1
    part: int | None = None


class Pieces(InputPartition):
    """What one task reads, in order."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(len(pieces))
        self.pieces = pieces


class NoetlSource(DataSource):
    """Tables behind references: results of steps, and tables that were written in parts.

    Options: `store`, `tenant`, `organization`, `references` (a JSON list of payload references),
    `union` (number the references in the column `_part`), `partitions` (at most so many tasks);
    instead of `references` the name of a `table` that was written so, with `parquet` or `arrow`
    as its `parts`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of all references; a spread table tells them unopened."""
        home, refs, is_union = _parsed(self.options)
        if "table" in self.options:
            return frame_schema.spark_schema(_schema_of(tables.find(home, self.options["table"])))
        schemas = [_schema(home, ref) for ref in refs]
        merged = pa.unify_schemas(schemas, promote_options="permissive")
        if is_union:
            merged = merged.append(pa.field(PART, pa.int64()))
        return frame_schema.spark_schema(fitting.fitted_schema(merged))

    def reader(self, schema: StructType) -> "NoetlReader":
        """Return a reader that gives exactly these columns."""
        return NoetlReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:  # noqa: FBT001 - Spark's signature
        """Return a writer of a new table; raises `Refused` for one that would replace another."""
        if overwrite or "table" not in self.options:
            text = 'tables are written once: use .mode("append").option("table", name)'
            raise Refused("validation", text)
        home, _, _ = _parsed(self.options)
        is_parquet = self.options.get("parts", "parquet") == "parquet"
        return TableWriter(home, self.options["table"], schema, is_parquet=is_parquet)


class NoetlReader(DataSourceReader):
    """Cuts the references into tasks, and reads what a task was given."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Spread the pieces over tasks by their bytes, keeping their order."""
        home, refs, is_union = _parsed(self._options)
        if "table" in self._options:
            refs = tables.find(home, self._options["table"]).parts
        wanted = max(1, int(self._options.get("partitions", _PARTITIONS)))
        pieces = [
            piece
            for number, ref in enumerate(refs)
            for piece in _pieces(home, ref, part=number if is_union else None, slices=wanted)
        ]
        return [Pieces(group) for group in _grouped(pieces, wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the pieces of a task."""
        assert isinstance(partition, Pieces), "Spark hands back what `partitions` gave"
        home, _, _ = _parsed(self._options)
        wanted = frame_schema.arrow_schema(self._schema)
        for piece in partition.pieces:
            with _refusing(piece):
                table = fitting.fitted(_table(home, piece))
            if piece.part is not None:
                table = table.append_column(
                    PART, pa.array([piece.part] * table.num_rows, pa.int64())
                )
            with _refusing(piece):
                whole = fitting.cast(table, wanted).combine_chunks()
            yield from whole.to_batches(max_chunksize=_BATCH_ROWS)


def _parsed(options: Any) -> tuple[Home, list[PayloadRef], bool]:
    home = Home(
        url=options["store"],
        tenant_id=TenantId(options["tenant"]),
        organization_id=OrganizationId(options["organization"]),
    )
    text = options.get("references", "[]")
    refs = msgspec.json.decode(text.encode(), type=list[PayloadRef])
    return home, refs, options.get("union") == "true"


def _schema(home: Home, ref: PayloadRef) -> pa.Schema:
    """Return the columns of one reference; only a spread table need not be read for it."""
    if ref.media_type == SPREAD_MEDIA_TYPE:
        found = spread.of_result(_opened(home, ref), owner=ref)
        if found is not None:
            return _schema_of(found)
    return _table(home, Piece(ref)).schema


def _schema_of(found: Spread) -> pa.Schema:
    return fitting.fitted_schema(pa.ipc.read_schema(pa.py_buffer(b64decode(found.schema))))


def _pieces(home: Home, ref: PayloadRef, *, part: int | None, slices: int) -> list[Piece]:
    if ref.media_type == SPREAD_MEDIA_TYPE:
        found = spread.of_result(_opened(home, ref), owner=ref)
        if found is not None:
            return [Piece(one, part=part) for one in found.parts]
    is_table = ref.media_type in (ARROW_MEDIA_TYPE, PARQUET_MEDIA_TYPE) and ref.codec is None
    # Every slice checks the digest of the whole object, but decodes its own rows alone.
    count = min(slices, ref.payload_bytes // _SLICE_BYTES) if is_table else 1
    return [Piece(ref, index, max(1, count), part) for index in range(max(1, count))]


def _grouped(pieces: list[Piece], groups_max: int) -> Iterator[list[Piece]]:
    """Cut a list into at most so many groups of about the same number of bytes."""
    total = sum(piece.ref.payload_bytes / piece.count for piece in pieces)
    target = max(total / groups_max, 1.0)
    group: list[Piece] = []
    left = groups_max
    size = 0.0
    for piece in pieces:
        group.append(piece)
        size += piece.ref.payload_bytes / piece.count
        if size >= target and left > 1:
            yield group
            group, size, left = [], 0.0, left - 1
    if group:
        yield group


def _table(home: Home, piece: Piece) -> pa.Table:
    """Read a piece; raises `Refused`."""
    data = executors.read(home, piece.ref)
    try:
        if piece.count > 1:
            return _slice(Groups(data), piece)
        found = encoding.find_table(data)
        return _table_of(encoding.decode(data), piece.ref) if found is None else found
    except (PayloadUnreadable, msgspec.DecodeError) as problem:
        raise Refused("parse", f"{piece.ref.sha256} cannot be read: {problem}") from problem


def _slice(groups: Groups, piece: Piece) -> pa.Table:
    size = math.ceil(groups.count / piece.count)
    first = piece.index * size
    return groups.read(first, min(groups.count, first + size))


def _opened(home: Home, ref: PayloadRef) -> Any:
    try:
        return encoding.decode(executors.read(home, ref))
    except (PayloadUnreadable, msgspec.DecodeError) as problem:
        raise Refused("parse", f"{ref.sha256} cannot be read: {problem}") from problem


@contextmanager
def _refusing(piece: Piece) -> Iterator[None]:
    try:
        yield
    except SchemaMismatch as problem:
        raise Refused("schema", f"the payload {piece.ref.sha256}: {problem}") from problem


def _table_of(value: Any, ref: PayloadRef) -> pa.Table:
    """Build the table of a result that is kept as JSON."""
    with _refusing(Piece(ref)):
        found = row_tables.records(shown(value))
        if found is not None and (found.rows or found.columns):
            return row_tables.table_of(*found)
    text = f"the payload {ref.sha256} holds no rows: give a result that is a table"
    raise Refused("validation", text)


def shown(kept: Any) -> Any:
    """Return what a kept result is the result of: its last task's, or a loop's list."""
    if not isinstance(kept, dict):
        return kept
    if "tasks" in kept and "last" in kept:
        return kept["tasks"].get(kept["last"], {}).get("raw")
    return row_tables.joined(kept["results"]) if "results" in kept else kept
