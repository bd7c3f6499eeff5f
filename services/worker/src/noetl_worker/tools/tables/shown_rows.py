"""Rows that broke what is expected of them, of which errors and results show the first."""

from typing import Any

import pyarrow as pa

from noetl_contracts import codec
from noetl_worker.domain.check_reports import (
    DIVERTED_BYTES,
    DIVERTED_ROWS,
    EXAMPLE_BYTES,
    EXAMPLE_ROWS,
)
from noetl_worker.tools.tables import file_tables


class ShownRows:
    """The first rows of several batches, as many as there is room for."""

    def __init__(self, *, rows_max: int, bytes_max: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self._rows_left = rows_max
        self._bytes_left = bytes_max

    def add_rows(self, batch: pa.RecordBatch) -> None:
        """Add rows until there is no room for one; raises `ToolFailure`."""
        for place in range(batch.num_rows):
            if not self._rows_left:
                return
            rows = file_tables.build_rows(batch.slice(place, 1), [""] * batch.num_columns)
            self._bytes_left -= len(codec.encode_json(rows))
            if self._bytes_left < 0:
                self._rows_left = 0
                return
            self.rows += rows
            self._rows_left -= 1


def prepare_examples() -> ShownRows:
    """Return room for the examples of an error."""
    return ShownRows(rows_max=EXAMPLE_ROWS, bytes_max=EXAMPLE_BYTES)


def prepare_diverted() -> ShownRows:
    """Return room for rows that are left out."""
    return ShownRows(rows_max=DIVERTED_ROWS, bytes_max=DIVERTED_BYTES)
