"""A Parquet file into a PostgreSQL table by columns, where that gives what rows would give."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from noetl_chassis.blocking_work import in_thread
from noetl_worker.tools import tables, transfer_files
from noetl_worker.tools.call import Files
from noetl_worker.tools.transfer_postgres import PostgresTable
from noetl_worker.tools.transfer_rows import Aim, Target


async def copied(
    source: dict[str, Any], target: Target, aim: Aim, *, files: Files, size: int
) -> dict[str, int] | None:
    """Copy a file's columns; None where it has to go by rows, which also say what is wrong."""
    if not isinstance(target, PostgresTable) or aim.mode == "upsert" or aim.mapping is not None:
        return None
    path = await _parquet_path(source, files)
    opened = None if path is None else await in_thread(_opened, path)
    if path is None or opened is None:
        return None
    with opened as file:
        if not target.can_copy(file.schema_arrow):
            return None
        counted = _Counted(file, path, size=size)
        moved = await target.copy(counted.batches())
    return {"rows_transferred": moved, "chunks": counted.batches_read, "records_fetched": moved}


async def _parquet_path(source: dict[str, Any], files: Files) -> Path | None:
    named = source.get("uri") or source.get("path")
    if source["type"] != "file" or not isinstance(named, str):
        return None
    if tables.format_of(Path(named), source.get("format")) != "parquet":
        return None
    return await files.path(files.parse_name(named))


def _opened(path: Path) -> pyarrow.parquet.ParquetFile | None:
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pa.ArrowException):
        return None


class _Counted:
    """The batches of a file, and how many there were."""

    def __init__(self, file: pyarrow.parquet.ParquetFile, path: Path, *, size: int) -> None:
        self._path = path
        self._batches = file.iter_batches(batch_size=size)
        self.batches_read = 0

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield batch after batch, each read in a thread; raises `ToolFailure`."""
        while (batch := await in_thread(self._next)) is not None:
            self.batches_read += 1
            yield batch

    def _next(self) -> pa.RecordBatch | None:
        try:
            return next(self._batches, None)
        except (OSError, pa.ArrowException) as problem:
            raise transfer_files.unread(self._path, "parquet", problem) from problem
