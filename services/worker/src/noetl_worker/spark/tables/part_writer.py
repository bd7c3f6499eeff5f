"""A frame's rows into the payload store, written by the executors; the driver sees manifests."""

from base64 import b64encode
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, PayloadRef
from noetl_contracts.spread_table import PARTS_MAX, SpreadTable
from noetl_storage.arrow import arrow_values
from noetl_storage.arrow.arrow_values import ValueWithoutJson
from noetl_storage.arrow.encoding import PARQUET_MEDIA_TYPE
from noetl_storage.ports.ledger_ports import Payloads
from noetl_worker.spark.tables import store_access
from noetl_worker.spark.tables.store_access import SparkRefusal, StoreAddress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Format = Literal["arrow", "parquet"]

_MANIFEST = "manifest binary"
_HEAD_ROWS = 20
_HEAD_BYTES = 4 * 1024


class WritePlan(Struct, frozen=True, kw_only=True):
    """How a frame is to be written.

    What a task of Spark gives is one or more parts of about `part_bytes_max`; a task that gives
    no more than `inline_bytes_max` hands the bytes to the driver instead.
    """

    home: StoreAddress
    format: Format = "arrow"
    partition_by: tuple[str, ...] = ()
    part_bytes_max: int = 32 * 1024 * 1024
    inline_bytes_max: int = 64 * 1024


class PartManifest(Struct, frozen=True, kw_only=True):
    """One part: where it is, or its bytes; `values` are those of the columns it was cut by.

    `payload_bytes` is what its columns hold, unpacked.
    """

    row_count: int
    payload_bytes: int
    schema: str
    ref: PayloadRef | None = None
    data: bytes | None = None
    values: list[Any] = []
    head: list[dict[str, Any]] = []


def write_frame(frame: "DataFrame", plan: WritePlan) -> list[PartManifest]:
    """Write a frame; raises what Spark raises, and `SparkRefusal` inside of it."""
    if plan.partition_by:
        # Rows of equal values come together, and Spark cuts what is much larger than the rest.
        rebalanced_frame = frame.hint("rebalance", *plan.partition_by)
        frame = rebalanced_frame.sortWithinPartitions(*plan.partition_by)
    rows = frame.mapInArrow(FrameWriter(plan), _MANIFEST).collect()
    return [msgspec.msgpack.decode(bytes(row[0]), type=PartManifest) for row in rows]


class FrameWriter:
    """The part of `write_frame` that runs in executors, once for each task."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn a task's rows into manifests, as Spark carries them."""
        for manifest in self.write_parts(batches):
            yield pa.RecordBatch.from_arrays(
                [pa.array([msgspec.msgpack.encode(manifest)], pa.binary())], names=["manifest"]
            )

    def write_parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[PartManifest]:
        """Write a task's rows, and describe each part."""
        batches_in_part: list[pa.RecordBatch] = []
        size = 0
        is_first = True
        for batch in batches:
            if batch.num_rows == 0:
                continue
            batches_in_part.append(batch)
            size += batch.nbytes
            if size >= self._plan.part_bytes_max:
                yield from self._write_batches(batches_in_part, is_small=False)
                batches_in_part, size, is_first = [], 0, False
        if batches_in_part:
            is_small = is_first and size <= self._plan.inline_bytes_max
            yield from self._write_batches(batches_in_part, is_small=is_small)

    def _write_batches(
        self, batches: list[pa.RecordBatch], *, is_small: bool
    ) -> Iterator[PartManifest]:
        table = pa.Table.from_batches(batches)
        for values, part in _cut_by_values(table, self._plan.partition_by):
            yield self._write_part(part, values, is_small=is_small)

    def _write_part(self, table: pa.Table, values: list[Any], *, is_small: bool) -> PartManifest:
        data = encode_table(table, self._plan.format)
        about = {
            "row_count": table.num_rows,
            # What a reader has to hold, however well it packs.
            "payload_bytes": table.nbytes,
            "schema": encode_schema(table.schema),
            "values": values,
            "head": read_head(table),
        }
        if is_small or self._plan.home.is_in_process:
            return PartManifest(**about, data=data)
        home, plan = self._plan.home, self._plan

        async def put_part(payloads: Payloads) -> PayloadRef:
            return await payloads.put_payload(
                data,
                tenant_id=home.tenant_id,
                organization_id=home.organization_id,
                media_type=get_media_type(plan.format),
                row_count=table.num_rows,
                schema_digest=codec.digest_hex(str(about["schema"]).encode()),
            )

        return PartManifest(**about, ref=store_access.run_with_store(home, put_part))


def get_media_type(format_: Format) -> str:
    """Name the media type of a part."""
    return PARQUET_MEDIA_TYPE if format_ == "parquet" else ARROW_MEDIA_TYPE


def encode_table(table: pa.Table, format_: Format) -> bytes:
    """Write a table as the bytes of a part."""
    sink = pa.BufferOutputStream()
    if format_ == "parquet":
        pyarrow.parquet.write_table(table, sink, compression="zstd")
    else:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def encode_schema(schema: pa.Schema) -> str:
    """Write a schema as the text that a `SpreadTable` carries."""
    return b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def read_head(table: pa.Table) -> list[dict[str, Any]]:
    """Return the first few rows as JSON values; raises `SparkRefusal` for what has no JSON form."""
    kinds = [""] * table.num_columns
    rows: list[dict[str, Any]] = []
    room = _HEAD_BYTES
    for batch in table.slice(0, _HEAD_ROWS).to_batches():
        try:
            batch_rows = arrow_values.batch_to_rows(batch, kinds)
        except ValueWithoutJson as problem:
            raise SparkRefusal("schema", str(problem)) from problem
        for row in batch_rows:
            room -= len(codec.encode_json(row))
            if room < 0:
                return rows
            rows.append(row)
    return rows


def _cut_by_values(
    table: pa.Table, columns: tuple[str, ...]
) -> Iterator[tuple[list[Any], pa.Table]]:
    """Cut a table, sorted by some columns, into the runs of equal values."""
    if not columns:
        yield [], table
        return
    starts = [0, *_find_changes(table, columns), table.num_rows]
    for start, end in pairwise(starts):
        partition_values = arrow_values.batch_to_rows(
            table.select(list(columns)).slice(start, 1).combine_chunks().to_batches()[0],
            [""] * len(columns),
        )[0]
        yield list(partition_values.values()), table.slice(start, end - start).combine_chunks()


def _find_changes(table: pa.Table, columns: tuple[str, ...]) -> list[int]:
    """Return the rows whose values are not those of the row before."""
    changed: Any = None
    for name in columns:
        column = table.column(name).combine_chunks()
        current, before = column.slice(1), column.slice(0, len(column) - 1)
        try:
            differs = pc.not_equal(current, before)
        except pa.ArrowNotImplementedError as problem:
            text = f"output.partition_by: column '{name}' is {column.type}, which is not compared"
            raise SparkRefusal("schema", text) from problem
        # Null is a value as others are.
        differs = pc.coalesce(differs, pc.xor(current.is_null(), before.is_null()))
        changed = differs if changed is None else pc.or_(changed, differs)
    return [row + 1 for row in pc.indices_nonzero(changed).to_pylist()]


def build_spread(manifests: list[PartManifest], plan: WritePlan, columns: list[str]) -> SpreadTable:
    """Describe a table whose parts are all in the store; raises `SparkRefusal` for too many."""
    if len(manifests) > PARTS_MAX:
        text = (
            f"the result has {len(manifests)} parts, {PARTS_MAX} is the limit: repartition it, or "
            "partition by columns of fewer values"
        )
        raise SparkRefusal("limit", text)
    first = manifests[0]
    return SpreadTable(
        row_count=sum(manifest.row_count for manifest in manifests),
        payload_bytes=sum(part_manifest.payload_bytes for part_manifest in manifests),
        schema=first.schema,
        columns=columns,
        parts=[manifest.ref for manifest in manifests if manifest.ref is not None],
        partition_by=list(plan.partition_by),
        partitions=[manifest.values for manifest in manifests] if plan.partition_by else [],
        head=first.head,
    )
