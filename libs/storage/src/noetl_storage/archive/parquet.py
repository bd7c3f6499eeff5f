"""A part of the archive as bytes: Parquet, zstd, one row an event by execution and version."""

from collections.abc import Iterator, Sequence
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import archive_format, stored_event
from noetl_contracts.ledger.stored_event import StoredEvent

_INSTANT = pa.timestamp("us", tz="UTC")
_ROW_GROUP_EVENTS = 5000
_BATCH_EVENTS = 1000

SCHEMA = pa.schema(
    [
        pa.field("tenant_id", pa.string(), nullable=False),
        pa.field("organization_id", pa.string(), nullable=False),
        pa.field("execution_id", pa.int64(), nullable=False),
        pa.field("stream_version", pa.int64(), nullable=False),
        pa.field("event_id", pa.int64(), nullable=False),
        pa.field("event_type", pa.string(), nullable=False),
        pa.field("event_time", _INSTANT, nullable=False),
        pa.field("ingest_time", _INSTANT),
        pa.field("producer", pa.string(), nullable=False),
        pa.field("node_name", pa.string()),
        pa.field("run_id", pa.string()),
        pa.field("stage_id", pa.int64()),
        pa.field("frame_id", pa.int64()),
        pa.field("command_id", pa.int64()),
        pa.field("worker_id", pa.string()),
        pa.field("attempt", pa.int64()),
        pa.field("status", pa.string()),
        pa.field("error_kind", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("row_count", pa.int64()),
        pa.field("path", pa.string()),
        pa.field("payload_sha256", pa.string()),
        pa.field("payloads", pa.list_(pa.string()), nullable=False),
        pa.field("payload_bytes", pa.int64()),
        pa.field("idempotency_key", pa.string()),
        pa.field("causation_id", pa.string()),
        pa.field("schema_name", pa.string(), nullable=False),
        pa.field("schema_version", pa.int32(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("envelope", pa.binary(), nullable=False),
    ]
)
_UNIQUE = {"event_id", "checksum", "envelope"}


def encode(events: Sequence[StoredEvent]) -> bytes:
    """Return the bytes of a part; the events come by execution and version."""
    table = pa.Table.from_pylist(
        [archive_format.build_event_row(event) for event in events], schema=SCHEMA
    )
    sink = BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        row_group_size=_ROW_GROUP_EVENTS,
        # Values that never come twice fill a dictionary for nothing.
        use_dictionary=[name for name in SCHEMA.names if name not in _UNIQUE],
    )
    return sink.getvalue()


def decode(
    data: bytes, *, execution_id: ExecutionId | None = None, after_version: int = 0
) -> Iterator[StoredEvent]:
    """Yield the events of a part, or those of one execution after a version, in their order.

    Row groups without them are not unpacked. Raises `MalformedMessage` for bytes that are no part.
    """
    try:
        source = pq.ParquetFile(pa.BufferReader(data))
        groups = _choose_row_groups(source, execution_id, after_version)
        for batch in source.iter_batches(
            batch_size=_BATCH_EVENTS,
            row_groups=groups,
            columns=["execution_id", "stream_version", "envelope"],
        ):
            yield from _decode_batch(batch, execution_id, after_version)
    except (pa.ArrowException, KeyError, OSError) as failure:
        raise MalformedMessage(f"this is no part of an archive: {failure}") from failure


def _choose_row_groups(
    source: pq.ParquetFile, execution_id: ExecutionId | None, after_version: int
) -> list[int]:
    """Return the row groups in which an execution's events after a version may stand."""
    group_indexes = range(source.metadata.num_row_groups)
    if execution_id is None:
        return list(group_indexes)
    execution_number, row_groups = int(execution_id), []
    for group in group_indexes:
        low, high = _read_bounds(source, group, "execution_id")
        if low <= execution_number <= high and (
            low < high or _read_bounds(source, group, "stream_version")[1] > after_version
        ):
            row_groups.append(group)
    return row_groups


def _read_bounds(source: pq.ParquetFile, group: int, column: str) -> tuple[int, int]:
    statistics = source.metadata.row_group(group).column(SCHEMA.get_field_index(column)).statistics
    if statistics is None or not statistics.has_min_max:
        return 0, 2**63
    return statistics.min, statistics.max


def _decode_batch(
    batch: pa.RecordBatch, execution_id: ExecutionId | None, after_version: int
) -> Iterator[StoredEvent]:
    executions, versions, envelopes = (column.to_pylist() for column in batch.columns)
    execution_number = None if execution_id is None else int(execution_id)
    for execution, version, data in zip(executions, versions, envelopes, strict=True):
        if execution_number is None or (execution == execution_number and version > after_version):
            yield stored_event.decode_stored_event(data)
