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

from noetl_contracts import codec, spread_table
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, PayloadRef
from noetl_contracts.spread_table import SPREAD_MEDIA_TYPE, SpreadTable
from noetl_storage.arrow import encoding, row_tables
from noetl_storage.arrow.encoding import PARQUET_MEDIA_TYPE, PayloadUnreadable, RowGroups
from noetl_storage.arrow.table_schema import SchemaMismatch
from noetl_worker.spark.grants.job_grant import JobGrant
from noetl_worker.spark.tables import arrow_columns, named_tables, store_access
from noetl_worker.spark.tables.named_tables import TableWriter
from noetl_worker.spark.tables.store_access import SparkRefusal, StoreAddress

NAME = "noetl"
PART = "_part"
_PARTITIONS = 8
_BATCH_ROWS = 10_000
# Smaller objects are not worth a task of their own.
_SLICE_BYTES = 8 * 1024 * 1024


def build_options(
    home: StoreAddress, refs: Sequence[PayloadRef], *, is_union: bool, partitions: int
) -> dict[str, str]:
    """Write the options of a read: addresses and digests, nothing secret."""
    return {
        "store": home.url,
        "tenant": home.tenant_id,
        "organization": home.organization_id,
        "references": codec.encode_json([msgspec.to_builtins(ref) for ref in refs]).decode(),
        "union": "true" if is_union else "false",
        "partitions": str(partitions),
    }


@dataclass
class PayloadSlice:
    """Some rows of one object: slice `index` of `count`; `part` is its number in a union."""

    ref: PayloadRef
    index: int = 0
    count: int = 1
    part: int | None = None


class SlicePartition(InputPartition):
    """What one task reads, in order."""

    def __init__(self, pieces: list[PayloadSlice]) -> None:
        super().__init__(len(pieces))
        self.pieces = pieces


class NoetlSource(DataSource):
    """Tables behind references: results of steps, and tables that were written in parts.

    Options: `store`, `tenant`, `organization`, `references` (a JSON list of payload references),
    `union` (number the references in the column `_part`), `partitions` (at most so many tasks);
    instead of `references` the name of a `table` that was written so, with `parquet` or `arrow`
    as its `parts`.
    """

    grant: JobGrant | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of all references; a spread table tells them unopened."""
        home, refs, is_union = _parse_options(self.options, self.grant)
        if "table" in self.options:
            return named_tables.build_spark_schema(
                _decode_schema(named_tables.find_named_table(home, self.options["table"]))
            )
        schemas = [_read_schema(home, ref) for ref in refs]
        merged_schema = pa.unify_schemas(schemas, promote_options="permissive")
        if is_union:
            merged_schema = merged_schema.append(pa.field(PART, pa.int64()))
        return named_tables.build_spark_schema(arrow_columns.fit_schema(merged_schema))

    def reader(self, schema: StructType) -> "NoetlReader":
        """Return a reader that gives exactly these columns."""
        return NoetlReader(dict(self.options), schema, self.grant)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:  # noqa: FBT001 - Spark's signature
        """Return a writer of a new table; raises `SparkRefusal` where one would be replaced."""
        if overwrite or "table" not in self.options:
            text = 'tables are written once: use .mode("append").option("table", name)'
            raise SparkRefusal("validation", text)
        home, _, _ = _parse_options(self.options, self.grant)
        is_parquet = self.options.get("parts", "parquet") == "parquet"
        return TableWriter(home, self.options["table"], schema, is_parquet=is_parquet)


class NoetlReader(DataSourceReader):
    """Cuts the references into tasks, and reads what a task was given."""

    def __init__(
        self, options: dict[str, str], schema: StructType, grant: JobGrant | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._grant = grant

    def partitions(self) -> Sequence[InputPartition]:
        """Spread the pieces over tasks by their bytes, keeping their order."""
        home, refs, is_union = _parse_options(self._options, self._grant)
        if "table" in self._options:
            refs = named_tables.find_named_table(home, self._options["table"]).parts
        partition_count = max(1, int(self._options.get("partitions", _PARTITIONS)))
        pieces = [
            piece
            for number, ref in enumerate(refs)
            for piece in _list_slices(
                home, ref, part=number if is_union else None, slices=partition_count
            )
        ]
        return [SlicePartition(group) for group in _group_by_bytes(pieces, partition_count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the pieces of a task."""
        assert isinstance(partition, SlicePartition), "Spark hands back what `partitions` gave"
        home, _, _ = _parse_options(self._options, self._grant)
        arrow_schema = named_tables.build_arrow_schema(self._schema)
        for piece in partition.pieces:
            with _refuse_mismatch(piece):
                table = arrow_columns.fit_table(_read_slice(home, piece))
            if piece.part is not None:
                table = table.append_column(
                    PART, pa.array([piece.part] * table.num_rows, pa.int64())
                )
            with _refuse_mismatch(piece):
                slice_table = arrow_columns.cast_table(table, arrow_schema).combine_chunks()
            yield from slice_table.to_batches(max_chunksize=_BATCH_ROWS)


def _parse_options(
    options: Any, grant: JobGrant | None = None
) -> tuple[StoreAddress, list[PayloadRef], bool]:
    home = StoreAddress(
        url=options["store"],
        tenant_id=TenantId(options["tenant"]),
        organization_id=OrganizationId(options["organization"]),
        grant=grant,
    )
    text = options.get("references", "[]")
    refs = msgspec.json.decode(text.encode(), type=list[PayloadRef])
    return home, refs, options.get("union") == "true"


def _read_schema(home: StoreAddress, ref: PayloadRef) -> pa.Schema:
    """Return the columns of one reference; only a spread table need not be read for it."""
    if ref.media_type == SPREAD_MEDIA_TYPE:
        spread = spread_table.find_spread_table(_decode_payload(home, ref), owner=ref)
        if spread is not None:
            return _decode_schema(spread)
    return _read_slice(home, PayloadSlice(ref)).schema


def _decode_schema(table: SpreadTable) -> pa.Schema:
    return arrow_columns.fit_schema(pa.ipc.read_schema(pa.py_buffer(b64decode(table.schema))))


def _list_slices(
    home: StoreAddress, ref: PayloadRef, *, part: int | None, slices: int
) -> list[PayloadSlice]:
    if ref.media_type == SPREAD_MEDIA_TYPE:
        spread = spread_table.find_spread_table(_decode_payload(home, ref), owner=ref)
        if spread is not None:
            return [PayloadSlice(payload_ref, part=part) for payload_ref in spread.parts]
    is_table = ref.media_type in (ARROW_MEDIA_TYPE, PARQUET_MEDIA_TYPE) and ref.codec is None
    # Every slice checks the digest of the whole object, but decodes its own rows alone.
    count = min(slices, ref.payload_bytes // _SLICE_BYTES) if is_table else 1
    return [PayloadSlice(ref, index, max(1, count), part) for index in range(max(1, count))]


def _group_by_bytes(pieces: list[PayloadSlice], groups_max: int) -> Iterator[list[PayloadSlice]]:
    """Cut a list into at most so many groups of about the same number of bytes."""
    total = sum(piece.ref.payload_bytes / piece.count for piece in pieces)
    target = max(total / groups_max, 1.0)
    group: list[PayloadSlice] = []
    groups_left = groups_max
    size = 0.0
    for piece in pieces:
        group.append(piece)
        size += piece.ref.payload_bytes / piece.count
        if size >= target and groups_left > 1:
            yield group
            group, size, groups_left = [], 0.0, groups_left - 1
    if group:
        yield group


def _read_slice(home: StoreAddress, piece: PayloadSlice) -> pa.Table:
    """Read a piece; raises `SparkRefusal`."""
    data = store_access.read_payload(home, piece.ref)
    try:
        if piece.count > 1:
            return _read_groups(RowGroups(data), piece)
        table = encoding.find_table(data)
        return _build_table(encoding.decode_payload(data), piece.ref) if table is None else table
    except (PayloadUnreadable, msgspec.DecodeError) as problem:
        raise SparkRefusal("parse", f"{piece.ref.sha256} cannot be read: {problem}") from problem


def _read_groups(groups: RowGroups, piece: PayloadSlice) -> pa.Table:
    size = math.ceil(groups.count / piece.count)
    first = piece.index * size
    return groups.read_groups(first, min(groups.count, first + size))


def _decode_payload(home: StoreAddress, ref: PayloadRef) -> Any:
    try:
        return encoding.decode_payload(store_access.read_payload(home, ref))
    except (PayloadUnreadable, msgspec.DecodeError) as problem:
        raise SparkRefusal("parse", f"{ref.sha256} cannot be read: {problem}") from problem


@contextmanager
def _refuse_mismatch(piece: PayloadSlice) -> Iterator[None]:
    try:
        yield
    except SchemaMismatch as problem:
        raise SparkRefusal("schema", f"the payload {piece.ref.sha256}: {problem}") from problem


def _build_table(value: Any, ref: PayloadRef) -> pa.Table:
    """Build the table of a result that is kept as JSON."""
    with _refuse_mismatch(PayloadSlice(ref)):
        row_table = row_tables.read_row_table(get_shown_value(value))
        if row_table is not None and (row_table.rows or row_table.columns):
            return row_tables.build_table(*row_table)
    text = f"the payload {ref.sha256} holds no rows: give a result that is a table"
    raise SparkRefusal("validation", text)


def get_shown_value(result: Any) -> Any:
    """Return what a kept result is the result of: its last task's, or a loop's list."""
    if not isinstance(result, dict):
        return result
    if "tasks" in result and "last" in result:
        return result["tasks"].get(result["last"], {}).get("raw")
    return row_tables.join_results(result["results"]) if "results" in result else result
