"""A tool's rows into the payload store as they come: parts of a table, a row group in memory."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet

from noetl_chassis.blocking_work import run_in_thread
from noetl_contracts import codec, spread_table
from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.spread_table import PARTS_MAX, SpreadTable
from noetl_storage.arrow import table_schema
from noetl_storage.arrow.table_schema import SchemaMismatch
from noetl_worker.domain.failures import ToolFailure, build_disk_full_error, build_error
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.payloads.tenant_payloads import TenantPayloads
from noetl_worker.spark.tables import part_writer
from noetl_worker.spark.tables.part_writer import Format
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.tables import file_tables

# Tables that are smaller are results like any other.
SMALL_BYTES = 8 * 1024 * 1024
BATCH_ROWS = 8192
GROUP_BYTES = 8 * 1024 * 1024
PART_BYTES = 64 * 1024 * 1024
_PIECE_BYTES = 256 * 1024


def is_spread_wanted(call: Call) -> bool:
    """Tell whether a call's rows may stay in the store, and nothing wants them as JSON."""
    output = call.output
    if not call.may_spread or call.sink is not None:
        return False
    return output is None or (
        output.format != "json"
        and output.store.compression in {None, "none"}
        and not output.partition_by
    )


def compute_held_bytes_max(call: Call) -> int:
    """Return up to how many bytes of columns a result is one like any other."""
    inline_bytes_max = None if call.output is None else call.output.inline_max_bytes
    return max(SMALL_BYTES, inline_bytes_max or 0)


def choose_part_format(call: Call) -> Format:
    """Name the form of a call's parts."""
    return "parquet" if call.output is not None and call.output.format == "parquet" else "arrow"


class TableGatherer:
    """Takes a query's batches: the rows of a small table come back, those of a large one stay.

    Without `may_spread` no table is large, and more than `bytes_max` is refused.
    """

    def __init__(
        self,
        call: Call,
        *,
        payloads: TenantPayloads,
        mask: SecretMask,
        kinds: list[str],
        may_spread: bool,
        bytes_max: int,
    ) -> None:
        self._parts = (
            PartStore(payloads, mask=mask, format_=choose_part_format(call)) if may_spread else None
        )
        self._held_max = compute_held_bytes_max(call) if may_spread else bytes_max
        self._kinds = kinds
        self._kind = call.kind

    async def gather_batches(self, batches: AsyncIterator[pa.RecordBatch]) -> tuple[Any, int]:
        """Return the rows, or what stands for them, and how many they are; raises `ToolFailure`."""
        try:
            return await self._gather_into_parts(batches)
        finally:
            if self._parts is not None:
                await run_in_thread(self._parts.close)

    async def _gather_into_parts(self, batches: AsyncIterator[pa.RecordBatch]) -> tuple[Any, int]:
        held_batches: list[pa.RecordBatch] = []
        used_bytes = 0
        async for batch in batches:
            held_batches.append(batch)
            used_bytes += batch.nbytes
            if used_bytes <= self._held_max:
                continue
            if self._parts is None:
                raise ToolFailure(_build_too_large_error(self._held_max, source=self._kind))
            while held_batches:
                await self._parts.add_batch(held_batches.pop(0))
        if used_bytes <= self._held_max or self._parts is None:
            rows = await asyncio.to_thread(_build_rows, held_batches, self._kinds)
            return rows, len(rows)
        table = await self._parts.finish_table()
        return spread_table.build_marker(table), table.row_count


class PartStore:
    """Batches of one schema, written into a file of the worker's and from there into the store."""

    def __init__(
        self,
        payloads: TenantPayloads,
        *,
        mask: SecretMask,
        format_: Format,
    ) -> None:
        self._payloads = payloads
        self._mask = mask
        self._format: Format = format_
        self._held_batches: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._table_bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None
        self._rows = 0
        self._schema: pa.Schema | None = None
        self._head: list[dict[str, Any]] = []
        self._refs: list[PayloadRef] = []

    async def add_batch(self, batch: pa.RecordBatch) -> None:
        """Add a batch; raises `ToolFailure` for what has no JSON form, and as the store does."""
        if not batch.num_rows:
            return
        masked = await asyncio.to_thread(_mask_batch, batch, self._mask)
        self._held_batches.append(masked)
        self._held_bytes += masked.nbytes
        self._table_bytes += masked.nbytes
        if self._held_bytes >= GROUP_BYTES:
            await self._write_group()

    async def finish_table(self) -> SpreadTable:
        """Store what is left and describe the table; it must have rows."""
        if self._held_batches:
            await self._write_group()
        if self._writer is not None:
            await self._store_part()
        assert self._schema is not None, "a table without rows is a result like any other"
        return SpreadTable(
            row_count=sum(ref.row_count or 0 for ref in self._refs),
            # What a reader has to hold, however well it packs.
            payload_bytes=self._table_bytes,
            schema=part_writer.encode_schema(self._schema),
            columns=self._schema.names,
            parts=self._refs,
            head=self._head,
        )

    def close(self) -> None:
        """Give back what the part that was begun takes on the disk; it blocks."""
        writer, self._writer = self._writer, None
        if writer is not None:
            # Closing writes the end of the file, so the writer closes before the file. A full disk
            # here is not reported: the caller has already given up.
            with suppress(OSError, pa.ArrowException):
                writer.close()
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        pa.default_memory_pool().release_unused()

    async def _write_group(self) -> None:
        batches, self._held_batches, self._held_bytes = self._held_batches, [], 0
        table = pa.Table.from_batches(batches)
        batches.clear()
        if self._schema is None:
            self._schema, self._head = table.schema, part_writer.read_head(table)
        try:
            written_bytes = await run_in_thread(self._append_group, table)
        except OSError as problem:
            raise ToolFailure(build_disk_full_error(problem)) from problem
        if written_bytes >= PART_BYTES:
            await self._store_part()

    def _append_group(self, table: pa.Table) -> int:
        """Write a row group; return how long the part is."""
        if self._writer is None:
            self._file = tempfile.TemporaryFile(prefix="noetl-part-")  # noqa: SIM115 - it lives until it is stored
            self._writer = (
                pyarrow.parquet.ParquetWriter(self._file, table.schema, compression="zstd")
                if self._format == "parquet"
                else pa.ipc.new_stream(self._file, table.schema)
            )
        assert self._file is not None, "a writer has a file"
        self._writer.write_table(table)
        self._rows += table.num_rows
        return self._file.tell()

    async def _store_part(self) -> None:
        if len(self._refs) >= PARTS_MAX:
            text = f"the rows make more than {PARTS_MAX} parts: select less"
            raise ToolFailure(build_error("limit", text, code="parts"))
        file, writer, self._writer = self._file, self._writer, None
        assert file is not None, "a writer has a file"
        assert self._schema is not None, "a part has rows"
        try:
            await run_in_thread(writer.close)
            reference = await self._payloads.store_pieces(
                lambda: _iterate_pieces(file),
                media_type=part_writer.get_media_type(self._format),
                row_count=self._rows,
                schema_digest=codec.digest_hex(part_writer.encode_schema(self._schema).encode()),
            )
        except OSError as problem:
            raise ToolFailure(build_disk_full_error(problem)) from problem
        self._refs.append(reference)
        self._rows = 0
        file.close()
        # What an allocator keeps for later would count as held.
        pa.default_memory_pool().release_unused()


def _build_rows(batches: list[pa.RecordBatch], kinds: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while batches:
        # Drop each batch once its rows are built: it is in memory only once.
        rows += file_tables.build_rows(batches.pop(0), kinds)
    return rows


async def _iterate_pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    file.seek(0)
    while piece := await run_in_thread(file.read, _PIECE_BYTES):
        yield piece


def _mask_batch(batch: pa.RecordBatch, mask: SecretMask) -> pa.RecordBatch:
    """Mask a batch's texts, and refuse moments that others would read as something else."""
    columns = [_mask_column(column, mask) for column in batch.columns]
    masked = pa.RecordBatch.from_arrays(columns, schema=batch.schema.remove_metadata())
    try:
        table_schema.check_portable(pa.Table.from_batches([masked]))
    except SchemaMismatch as problem:
        raise ToolFailure(build_error("schema", str(problem))) from problem
    return masked


def _mask_column(column: pa.Array, mask: SecretMask) -> pa.Array:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    texts = column.buffers()[-1]
    known_bytes = b"" if texts is None else texts.to_pybytes()
    if mask.mask_bytes(known_bytes) is known_bytes:
        return column
    values = [
        None if text is None else mask.mask_bytes(text.encode()).decode()
        for text in column.to_pylist()
    ]
    return pa.array(values, column.type)


def _build_too_large_error(bytes_max: int, *, source: str) -> ErrorObject:
    text = (
        f"the rows exceed {bytes_max} bytes, and a column's type cannot be kept as a table: cast "
        "it to text or a number, aggregate in the query, or select fewer columns"
    )
    return build_error("payload_too_large", text, source=source)
