"""Rows of a query in a file that nobody else sees: its database is free while they leave."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Self

import pyarrow as pa

from noetl_worker.domain.failures import ToolFailure, no_room
from noetl_worker.tools import tables

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


class Rows:
    """The columns of a query, and its rows, on the worker's disk; every method blocks."""

    def __init__(self, columns: tuple[str, ...], kinds: list[str]) -> None:
        self.columns = columns
        self._kinds = kinds
        self._file = tempfile.TemporaryFile(prefix="noetl-rows-")  # noqa: SIM115 - it lives as long as its owner

    @classmethod
    def of(
        cls,
        columns: tuple[str, ...],
        kinds: list[str],
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
    ) -> Self:
        """Write batches to their end; raises `ToolFailure` when the disk does not take them."""
        found = cls(columns, kinds)
        try:
            with pa.ipc.new_stream(found._file, schema, options=_COMPRESSED) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        except OSError as problem:
            found.close()
            raise ToolFailure(no_room(problem)) from problem
        except BaseException:
            found.close()
            raise
        return found

    def windows(self, size: int) -> Iterator[list[dict[str, Any]]]:
        """Yield at most so many rows at a time; raises `ToolFailure` for a value without a form."""
        if not self.columns:
            return
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as reader:
            for batch in reader:
                for start in range(0, batch.num_rows, size):
                    yield tables.rows_of(batch.slice(start, size), self._kinds)

    def close(self) -> None:
        """Give the disk space back."""
        # What it could not write it tries once more; whoever wrote knows that.
        with suppress(OSError):
            self._file.close()
