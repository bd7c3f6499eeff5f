"""What a DuckDB task gives: its rows, and what each statement did."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Self

import pyarrow as pa

from noetl_worker.domain.failures import ToolFailure, build_disk_full_error
from noetl_worker.tools.tables import file_tables


def show_command(kind: str, *, count: int, **result_fields: Any) -> dict[str, Any]:
    """Show what one statement of a kind did; `result_fields` are its rows, columns and types."""
    return {
        "rows": [],
        "row_count": count,
        "columns": [],
        **result_fields,
        "status": "ok",
        "message": f"{kind} {count}",
    }


def show_commands(commands: list[dict[str, Any]]) -> dict[str, Any]:
    """Show what several statements did: the rows are those of the last one that gave any."""
    shown_command = next(
        (command for command in reversed(commands) if command["columns"]), commands[-1]
    )
    raw: dict[str, Any] = {
        "rows": shown_command["rows"],
        "row_count": shown_command["row_count"],
        "columns": shown_command["columns"],
        **({"types": shown_command["types"]} if "types" in shown_command else {}),
        "statement_count": len(commands),
        "status": commands[-1]["status"],
        "message": commands[-1]["message"],
    }
    if len(commands) > 1:
        raw["commands"] = commands
    return raw


def show_query(rows: Any, *, columns: list[str], types: list[str], count: int) -> dict[str, Any]:
    """Show what a single query gave."""
    return {
        "rows": rows,
        "row_count": count,
        "columns": columns,
        "types": types,
        "statement_count": 1,
        "status": "ok",
        "message": f"SELECT {count}",
    }


_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


class SpooledRows:
    """The columns of a query, and its rows, on the worker's disk; every method blocks."""

    def __init__(self, columns: tuple[str, ...], kinds: list[str]) -> None:
        self.columns = columns
        self._kinds = kinds
        self._file = tempfile.TemporaryFile(prefix="noetl-rows-")  # noqa: SIM115 - it lives as long as its owner

    @classmethod
    def spool_batches(
        cls,
        columns: tuple[str, ...],
        kinds: list[str],
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
    ) -> Self:
        """Write batches to their end; raises `ToolFailure` when the disk does not take them."""
        spooled = cls(columns, kinds)
        try:
            with pa.ipc.new_stream(spooled._file, schema, options=_COMPRESSED) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        except OSError as problem:
            spooled.close()
            raise ToolFailure(build_disk_full_error(problem)) from problem
        except BaseException:
            spooled.close()
            raise
        return spooled

    def iterate_windows(self, size: int) -> Iterator[list[dict[str, Any]]]:
        """Yield at most so many rows at a time; raises `ToolFailure` for a value without a form."""
        if not self.columns:
            return
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as reader:
            for batch in reader:
                for start in range(0, batch.num_rows, size):
                    yield file_tables.build_rows(batch.slice(start, size), self._kinds)

    def close(self) -> None:
        """Give the disk space back."""
        # Closing tries a failed write once more; the writer has already got that error.
        with suppress(OSError):
            self._file.close()
