"""Rows of a stream on the worker's own disk, until they become one payload."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import IO

from noetl_chassis.blocking_work import run_in_thread
from noetl_worker.domain.failures import ToolFailure, build_disk_full_error

_PIECE_BYTES = 256 * 1024


class RowSpool:
    """Encoded rows, joined by commas, in a file that nobody else sees."""

    def __init__(self) -> None:
        self._file = _open_file()

    def clear_rows(self) -> None:
        """Forget what was written, and what could not be."""
        self.close()
        self._file = _open_file()

    def add_rows(self, rows: bytes) -> None:
        """Write encoded rows behind those before; raises `ToolFailure`."""
        try:
            if self._file.tell():
                self._file.write(b",")
            self._file.write(rows)
            self._file.flush()
        except OSError as problem:
            raise ToolFailure(build_disk_full_error(problem)) from problem

    async def iterate_pieces(self, head: bytes, tail: bytes) -> AsyncIterator[bytes]:
        """Yield all rows between a head and a tail."""
        yield head
        self._file.seek(0)
        while piece := await run_in_thread(self._file.read, _PIECE_BYTES):
            yield piece
        yield tail

    def close(self) -> None:
        """Give the disk space back."""
        # Closing tries a failed write once more; the writer has already got that error.
        with suppress(OSError):
            self._file.close()


def _open_file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="noetl-stream-")
