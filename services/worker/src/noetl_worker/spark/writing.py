"""A frame's rows into the payload store, written by the executors; the driver sees manifests."""

from base64 import b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, PayloadRef
from noetl_contracts.spread import PARTS_MAX, Spread
from noetl_storage import arrow_values
from noetl_storage.arrow_values import UnshownValue
from noetl_storage.encoding import PARQUET_MEDIA_TYPE
from noetl_storage.ports import Payloads
from noetl_worker.spark import executors
from noetl_worker.spark.executors import Home, Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Format = Literal["arrow", "parquet"]

_MANIFEST = "manifest binary"
_HEAD_ROWS = 20
_HEAD_BYTES = 4 * 1024


class Plan(Struct, frozen=True, kw_only=True):
    """How a frame is to be written.

    What a task of Spark gives is one or more parts of about `part_bytes_max`; a task that gives
    no more than `inline_bytes_max` hands the bytes to the driver instead.
    """

    home: Home
    format: Format = "arrow"
    partition_by: tuple[str, ...] = ()
    part_bytes_max: int = 32 * 1024 * 1024
    inline_bytes_max: int = 64 * 1024


class Manifest(Struct, frozen=True, kw_only=True):
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


def write(frame: "DataFrame", plan: Plan) -> list[Manifest]:
    """Write a frame; raises what Spark raises, and `Refused` inside of it."""
    if plan.partition_by:
        frame = frame.repartition(*plan.partition_by).sortWithinPartitions(*plan.partition_by)
    rows = frame.mapInArrow(Written(plan), _MANIFEST).collect()
    return [msgspec.msgpack.decode(bytes(row[0]), type=Manifest) for row in rows]


class Written:
    """The part of `write` that runs in executors, once for each task."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn a task's rows into manifests, as Spark carries them."""
        for manifest in self.parts(batches):
            yield pa.RecordBatch.from_arrays(
                [pa.array([msgspec.msgpack.encode(manifest)], pa.binary())], names=["manifest"]
            )

    def parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Manifest]:
        """Write a task's rows, and describe each part."""
        held: list[pa.RecordBatch] = []
        size = 0
        is_first = True
        for batch in batches:
            if batch.num_rows == 0:
                continue
            held.append(batch)
            size += batch.nbytes
            if size >= self._plan.part_bytes_max:
                yield from self._parts(held, is_small=False)
                held, size, is_first = [], 0, False
        if held:
            is_small = is_first and size <= self._plan.inline_bytes_max
            yield from self._parts(held, is_small=is_small)

    def _parts(self, held: list[pa.RecordBatch], *, is_small: bool) -> Iterator[Manifest]:
        table = pa.Table.from_batches(held)
        for values, part in _cut(table, self._plan.partition_by):
            yield self._written(part, values, is_small=is_small)

    def _written(self, table: pa.Table, values: list[Any], *, is_small: bool) -> Manifest:
        data = encoded(table, self._plan.format)
        about = {
            "row_count": table.num_rows,
            # What a reader has to hold, however well it packs.
            "payload_bytes": table.nbytes,
            "schema": schema_text(table.schema),
            "values": values,
            "head": head_of(table),
        }
        if is_small or self._plan.home.is_in_process:
            return Manifest(**about, data=data)
        home, plan = self._plan.home, self._plan

        async def put(payloads: Payloads) -> PayloadRef:
            return await payloads.put(
                data,
                tenant_id=home.tenant_id,
                organization_id=home.organization_id,
                media_type=media_type(plan.format),
                row_count=table.num_rows,
                schema_digest=codec.digest(str(about["schema"]).encode()),
            )

        return Manifest(**about, ref=executors.with_store(home, put))


def media_type(format_: Format) -> str:
    """Name the media type of a part."""
    return PARQUET_MEDIA_TYPE if format_ == "parquet" else ARROW_MEDIA_TYPE


def encoded(table: pa.Table, format_: Format) -> bytes:
    """Write a table as the bytes of a part."""
    sink = pa.BufferOutputStream()
    if format_ == "parquet":
        pyarrow.parquet.write_table(table, sink, compression="zstd")
    else:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def schema_text(schema: pa.Schema) -> str:
    """Write a schema as the text that a `Spread` carries."""
    return b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def head_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the first few rows as JSON values; raises `Refused` for what has no JSON form."""
    kinds = [""] * table.num_columns
    rows: list[dict[str, Any]] = []
    room = _HEAD_BYTES
    for batch in table.slice(0, _HEAD_ROWS).to_batches():
        try:
            found = arrow_values.rows_of(batch, kinds)
        except UnshownValue as problem:
            raise Refused("schema", str(problem)) from problem
        for row in found:
            room -= len(codec.encode(row))
            if room < 0:
                return rows
            rows.append(row)
    return rows


def _cut(table: pa.Table, columns: tuple[str, ...]) -> Iterator[tuple[list[Any], pa.Table]]:
    """Cut a table, sorted by some columns, into the runs of equal values."""
    if not columns:
        yield [], table
        return
    keys = list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))
    start = 0
    for index in range(1, len(keys) + 1):
        if index == len(keys) or keys[index] != keys[start]:
            shown = arrow_values.rows_of(
                table.select(list(columns)).slice(start, 1).combine_chunks().to_batches()[0],
                [""] * len(columns),
            )[0]
            yield list(shown.values()), table.slice(start, index - start).combine_chunks()
            start = index


def spread_of(manifests: list[Manifest], plan: Plan, columns: list[str]) -> Spread:
    """Describe a table whose parts are all in the store; raises `Refused` for too many."""
    if len(manifests) > PARTS_MAX:
        text = (
            f"the result has {len(manifests)} parts, {PARTS_MAX} is the limit: repartition it, or "
            "partition by columns of fewer values"
        )
        raise Refused("limit", text)
    first = manifests[0]
    return Spread(
        row_count=sum(one.row_count for one in manifests),
        payload_bytes=sum(one.payload_bytes for one in manifests),
        schema=first.schema,
        columns=columns,
        parts=[one.ref for one in manifests if one.ref is not None],
        partition_by=list(plan.partition_by),
        partitions=[one.values for one in manifests] if plan.partition_by else [],
        head=first.head,
    )
