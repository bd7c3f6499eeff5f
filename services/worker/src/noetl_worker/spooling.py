"""Rows of a stream on the worker's own disk, until they become one payload."""

import tempfile
from collections.abc import AsyncIterator

from noetl_worker.in_thread import in_thread

_PIECE_BYTES = 256 * 1024


class Spool:
    """Encoded rows, joined by commas, in a file that nobody else sees."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="noetl-stream-")  # noqa: SIM115 - it lives as long as its owner

    def clear(self) -> None:
        """Forget what was written."""
        self._file.seek(0)
        self._file.truncate()

    def add(self, rows: bytes) -> None:
        """Write encoded rows behind those before."""
        if self._file.tell():
            self._file.write(b",")
        self._file.write(rows)

    async def pieces(self, head: bytes, tail: bytes) -> AsyncIterator[bytes]:
        """Yield all rows between a head and a tail."""
        yield head
        self._file.seek(0)
        while piece := await in_thread(self._file.read, _PIECE_BYTES):
            yield piece
        yield tail

    def close(self) -> None:
        """Give the disk space back."""
        self._file.close()
