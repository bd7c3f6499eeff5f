"""Copies by columns between Parquet files and PostgreSQL tables, with the result of row copies."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet

from noetl_chassis.blocking_work import run_in_thread
from noetl_worker.sql import sql_statements
from noetl_worker.tools.calls.call import CursorScanPort, TaskFilesPort
from noetl_worker.tools.postgres import copy_columns
from noetl_worker.tools.postgres.postgres_session import PostgresSession
from noetl_worker.tools.postgres.row_windows import parse_one_statement
from noetl_worker.tools.postgres.transactions import hold_transaction
from noetl_worker.tools.postgres.value_types import bind_values
from noetl_worker.tools.tables import file_tables, transfer_rows
from noetl_worker.tools.tables.transfer_rows import ChunkTarget, TransferAim
from noetl_worker.tools.transfer import file_target
from noetl_worker.tools.transfer.postgres_target import PostgresTable

# What `COPY (…) TO` takes.
_QUERY = re.compile(r"\s*(select|with|values|table)\b", re.IGNORECASE)
_IN_FILES = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "uuid": pa.string(),
}
# Moments go as the text of one server for the same type of the other.
_TIMES = {
    "date": "date",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
}


async def copy_parquet_columns(
    source: dict[str, Any],
    target: ChunkTarget,
    aim: TransferAim,
    *,
    files: TaskFilesPort,
    size: int,
    scan: CursorScanPort | None = None,
) -> dict[str, int] | None:
    """Copy a file's columns; None where it has to go by rows, which also say what is wrong."""
    if not isinstance(target, PostgresTable) or not _can_append(aim):
        return None
    path = await _find_parquet_path(source, files)
    parquet_file = None if path is None else await run_in_thread(_open_parquet, path)
    if path is None or parquet_file is None:
        return None
    with parquet_file as file:
        if not target.can_copy(file.schema_arrow):
            return None
        counted_batches = _CountedFileBatches(file, path, size=size, scan=scan)
        row_count = await target.copy_batches(counted_batches.iterate_batches())
    return {
        "rows_transferred": row_count,
        "chunks": counted_batches.batches_read,
        "records_fetched": row_count,
    }


def _can_append(aim: TransferAim) -> bool:
    """Tell whether columns go into the target as they come."""
    return aim.mode not in transfer_rows.KEYED_MODES and aim.mapping is None


async def _find_parquet_path(source: dict[str, Any], files: TaskFilesPort) -> Path | None:
    file_name = source.get("uri") or source.get("path")
    if source["type"] != "file" or not isinstance(file_name, str):
        return None
    if file_tables.choose_format(Path(file_name), source.get("format")) != "parquet":
        return None
    return await files.fetch_path(files.parse_name(file_name))


def _open_parquet(path: Path) -> pyarrow.parquet.ParquetFile | None:
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pa.ArrowException):
        return None


class _CountedFileBatches:
    """The batches of a file, and how many there were."""

    def __init__(
        self,
        file: pyarrow.parquet.ParquetFile,
        path: Path,
        *,
        size: int,
        scan: CursorScanPort | None,
    ) -> None:
        self._path = path
        self._scan = scan
        self._batches = file.iter_batches(batch_size=size)
        self.batches_read = 0

    async def iterate_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield batch after batch, each read in a thread; raises `ToolFailure`."""
        while (batch := await run_in_thread(self._read_next)) is not None:
            self.batches_read += 1
            if self._scan is not None:
                self._scan.scan_batch(batch)
            yield batch

    def _read_next(self) -> pa.RecordBatch | None:
        try:
            return next(self._batches, None)
        except (OSError, pa.ArrowException) as problem:
            raise file_target.build_unread_failure(self._path, "parquet", problem) from problem


class ColumnSink(Protocol):
    """A file that takes columns."""

    @property
    def takes_columns(self) -> bool:
        """Tell whether its format is one of columns."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Add a batch; it blocks."""


async def copy_query_columns(
    source: dict[str, Any],
    session: PostgresSession,
    aim: TransferAim,
    *,
    size: int,
    table: ChunkTarget | None = None,
    sheet: ColumnSink | None = None,
    scan: CursorScanPort | None = None,
) -> dict[str, int] | None:
    """Copy a query's columns; None where it has to go by rows, which also say what is wrong."""
    if not _can_append(aim):
        return None
    statement = parse_one_statement(source.get("query"), source.get("params"))
    if not _QUERY.match(statement.text):
        return None
    is_inside = session.connection.is_in_transaction()
    own_transaction = (
        nullcontext() if is_inside else hold_transaction(session.connection, readonly=True)
    )
    async with own_transaction:
        return await _copy_in_transaction(
            source, statement, session, size=size, table=table, sheet=sheet, scan=scan
        )


async def _copy_in_transaction(
    source: dict[str, Any],
    statement: sql_statements.Statement,
    session: PostgresSession,
    *,
    size: int,
    table: ChunkTarget | None,
    sheet: ColumnSink | None,
    scan: CursorScanPort | None,
) -> dict[str, int] | None:
    plan = await session.describe_statement(statement.text)
    kinds = {attribute.name: attribute.type.name for attribute in plan.prepared.get_attributes()}
    if not kinds or len(kinds) < len(plan.columns):
        return None
    write: Callable[[_CountedBatches], Any]
    if sheet is not None and sheet.takes_columns and kinds.keys() and _fits_file(kinds):
        types = {name: _IN_FILES[kind] for name, kind in kinds.items()}
        write = lambda batches: _copy_into_file(sheet, batches)  # noqa: E731 - one of two ends
    elif isinstance(table, PostgresTable) and _fits_table(kinds, table):
        types = dict.fromkeys(kinds, pa.string())
        types |= {name: _IN_FILES[kind] for name, kind in kinds.items() if kind in _IN_FILES}
        write = lambda batches: table.copy_batches(batches.iterate_batches())  # noqa: E731 - as above
    else:
        return None
    values = bind_values(
        sql_statements.order_arguments(statement, source.get("params")),
        plan.binders,
        plan.parameter_types,
    )
    reading = copy_columns.read_columns(session, statement.text, values, types=types)
    async with aclosing(reading):
        counted_batches = _CountedBatches(reading, scan=scan)
        row_count = await write(counted_batches)
    return {
        "rows_transferred": row_count,
        # As many as rows would have come in.
        "chunks": -(-counted_batches.rows // size),
        "records_fetched": counted_batches.rows,
    }


def _fits_file(kinds: dict[str, str]) -> bool:
    # In a file it is no text.
    return all(kind in _IN_FILES and kind != "uuid" for kind in kinds.values())


def _fits_table(kinds: dict[str, str], table: PostgresTable) -> bool:
    """Tell whether every column means the same in the target."""
    times = {name: kind for name, kind in kinds.items() if kind in _TIMES}
    if any(kind not in _IN_FILES and kind not in _TIMES for kind in kinds.values()):
        return False
    if any(table.find_column_type(name) != _TIMES[kind] for name, kind in times.items()):
        return False
    schema = {name: _IN_FILES.get(kind, pa.string()) for name, kind in kinds.items()}
    return table.can_copy(pa.schema(list(schema.items())))


async def _copy_into_file(sheet: ColumnSink, batches: "_CountedBatches") -> int:
    async for batch in batches.iterate_batches():
        await run_in_thread(sheet.write_batch, batch)
    return batches.rows


class _CountedBatches:
    """Batches as they come, and how many rows they had."""

    def __init__(
        self, reading: AsyncGenerator[pa.RecordBatch, None], *, scan: CursorScanPort | None
    ) -> None:
        self._reading = reading
        self._scan = scan
        self.rows = 0

    async def iterate_batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield batch after batch."""
        async for batch in self._reading:
            self.rows += batch.num_rows
            if self._scan is not None:
                self._scan.scan_batch(batch)
            yield batch
