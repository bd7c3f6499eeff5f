"""Stored tables, read when they take no more than a bound.

Everything raises `PayloadTooLarge` for what takes more, and `PayloadUnreadable` for what is broken.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet

from noetl_contracts.payloads import ARROW_HEAD, GZIP_HEAD, PARQUET_HEAD, ZSTD_HEAD
from noetl_storage.size_limits import ipc_messages, parquet_footer, parquet_size
from noetl_storage.size_limits.refusals import MalformedBytes, PayloadUnreadable

Compression = Literal["gzip", "zstd"]

# The first bytes of each form.
PARQUET, ARROW = PARQUET_HEAD, ARROW_HEAD
PACKINGS: tuple[tuple[bytes, Compression], ...] = (
    (GZIP_HEAD, "gzip"),
    (ZSTD_HEAD, "zstd"),
)
# What the readers raise over bytes that are no table; column names may be no text.
BROKEN = (OSError, pa.ArrowException, UnicodeDecodeError, MalformedBytes)


@contextmanager
def refuse_broken_bytes() -> Iterator[None]:
    """Turn what readers raise over broken bytes into `PayloadUnreadable`."""
    try:
        yield
    except BROKEN as failure:
        raise PayloadUnreadable(f"a payload is no table: {failure}") from failure


class StreamTable:
    """An opened Arrow stream. What is not packed in it is not copied, and may be any length."""

    def __init__(self, data: bytes, *, bytes_max: int) -> None:
        with refuse_broken_bytes():
            ipc_messages.check_stream_size(pa.BufferReader(data), bytes_max=bytes_max)
            self._stream = pa.ipc.open_stream(pa.BufferReader(data))
            self.schema = self._stream.schema

    def read_table(self) -> Any:
        """Read all batches as a table."""
        with refuse_broken_bytes():
            table = self._stream.read_all()
            table.validate(full=True)
        return table

    def read_batches(self) -> list[Any]:
        """Read all batches, of which nobody has looked into the values."""
        with refuse_broken_bytes():
            return list(self._stream)


class ParquetTable:
    """An opened Parquet file."""

    def __init__(self, source: Any, *, bytes_max: int) -> None:
        self._source = source
        self._bytes_max = bytes_max
        with refuse_broken_bytes():
            parquet_footer.check_footer_size(source, bytes_max=bytes_max)
            self._file = pyarrow.parquet.ParquetFile(source)
            self.schema = self._file.schema_arrow
            self.groups = int(self._file.num_row_groups)

    def read_table(self, groups: Iterable[int] | None = None) -> Any:
        """Read the row groups, or all of them, as a table."""
        group_indexes = list(range(self.groups) if groups is None else groups)
        with refuse_broken_bytes():
            parquet_size.check_groups_size(
                self._file, self._source, group_indexes, bytes_max=self._bytes_max
            )
            return (
                self._file.read() if groups is None else self._file.read_row_groups(group_indexes)
            )


def open_table(data: bytes, *, bytes_max: int) -> ParquetTable | StreamTable:
    """Open stored bytes as the table that their first bytes tell of."""
    if data.startswith(PARQUET):
        return ParquetTable(pa.BufferReader(data), bytes_max=bytes_max)
    return StreamTable(data, bytes_max=bytes_max)
