"""A dataset as the source of a transfer: its rows by columns, or as values."""

from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any

import pyarrow as pa

from noetl_chassis.blocking_work import run_in_thread, run_interruptibly
from noetl_worker.datasets import plan_scan
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.plan_scan import PlannedSource
from noetl_worker.domain.check_reports import CheckFindings
from noetl_worker.tools.calls.call import Call, CursorScanPort
from noetl_worker.tools.tables import dataset_results, file_tables, transfer_rows
from noetl_worker.tools.tables.row_checks import Checks, CheckScope, NoChecks, open_checks
from noetl_worker.tools.tables.transfer_rows import RowWindow, TransferAim
from noetl_worker.tools.transfer.column_copy import ColumnSink
from noetl_worker.tools.transfer.postgres_target import PostgresTable

_NAME = "source"


class SourceDataset:
    """A dataset whose rows are moved; every method raises `ToolFailure`."""

    def __init__(self, planned_source: PlannedSource, call: Call, now: datetime) -> None:
        self._planned_source = planned_source
        self._now = now
        self._call = call
        self._rejects = Rejects()
        self._findings = CheckFindings()
        self._checks: Checks = NoChecks()
        self._rows_read = self._rows = self._batches = 0

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the rows."""
        return self._planned_source.schema

    async def copy_columns(
        self,
        aim: TransferAim,
        *,
        table: PostgresTable | None,
        sheet: ColumnSink | None,
        scan: CursorScanPort | None,
    ) -> dict[str, Any] | None:
        """Move the rows by columns; None where they have to go by rows."""
        schema = map_schema(self.schema, aim.mapping)
        if schema is None:
            return None
        batches = self._iterate_mapped(schema, aim.mapping, scan)
        if table is not None and table.can_copy(schema):
            row_count = await table.copy_batches(batches)
            merged_count = await table.finish_rows()
            return self._build_outcome(row_count if merged_count is None else merged_count)
        if sheet is None or not sheet.takes_columns:
            return None
        # Also a file without rows has columns.
        await run_in_thread(sheet.write_batch, pa.RecordBatch.from_pylist([], schema=schema))
        async with aclosing(batches):
            async for batch in batches:
                await run_in_thread(sheet.write_batch, batch)
        return self._build_outcome(self._rows)

    async def iterate_windows(self, size: int) -> AsyncGenerator[RowWindow, None]:
        """Yield the rows as values, so many at a time."""
        kinds = {field.name: field.type for field in self.schema}
        columns = tuple(self.schema.names)
        async with aclosing(self.iterate_batches()) as batches:
            async for batch in batches:
                for start in range(0, batch.num_rows, size):
                    part = batch.slice(start, size)
                    rows = await run_in_thread(file_tables.build_rows, part, [""] * len(columns))
                    yield RowWindow(rows=rows, columns=columns, kinds=kinds)

    def iterate_blocking(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as they are read; each step blocks."""
        with dataset_results.translate_problems(self._call, _NAME):
            yield from self._iterate_checked()

    def stop_checks(self) -> None:
        """End the checks of rows that are read, from another thread."""
        self._checks.stop()

    def _iterate_checked(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows that stay; raises `DatasetProblem` at the end when a check is broken."""
        scope = CheckScope(dataset=_NAME, now=self._now)
        with open_checks(self._planned_source.plan.source.expect, scope) as checks:
            self._checks = checks
            checks.check_columns(self.schema)
            for batch in plan_scan.iterate_source(self._planned_source, self._rejects):
                self._rows_read += batch.num_rows
                yield checks.filter_batch(batch)
            self._findings = checks.finish()

    async def iterate_batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the rows as they are read, each step in a thread."""
        reading = self._iterate_checked()
        try:
            while True:
                with dataset_results.translate_problems(self._call, _NAME):
                    batch = await run_interruptibly(self.stop_checks, next, reading, None)
                if batch is None:
                    return
                self._rows += batch.num_rows
                self._batches += 1
                yield batch
        finally:
            await run_in_thread(reading.close)

    def _build_outcome(self, row_count: int) -> dict[str, Any]:
        """Say what was moved."""
        return {"rows_transferred": row_count, "chunks": self._batches}

    @property
    def findings(self) -> CheckFindings:
        """Return what the checks of the rows have found, once all are read."""
        return self._findings

    def add_reading(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """Say how many rows were read, and which did not fit where such are left out."""
        outcome["records_fetched"] = self._rows_read
        if self._planned_source.plan.source.on_bad_row != "fail":
            outcome["rejected"] = dataset_results.show_rejects({_NAME: self._rejects})
        return outcome

    async def _iterate_mapped(
        self, schema: pa.Schema, mapping: Mapping[str, str] | None, scan: CursorScanPort | None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        async with aclosing(self.iterate_batches()) as batches:
            async for batch in batches:
                if scan is not None:
                    scan.scan_batch(batch)
                yield map_batch(batch, schema, mapping)


def map_schema(schema: pa.Schema, mapping: Mapping[str, str] | None) -> pa.Schema | None:
    """Return the columns of the target; None where a mapping looks into a value.

    Raises `ToolFailure`.
    """
    if mapping is None:
        return schema
    fields = []
    for column, path in mapping.items():
        if path not in schema.names:
            if path.split(".")[0].split("[")[0] in schema.names:
                return None
            raise transfer_rows.build_unknown_failure("source field", path, schema.names)
        fields.append(pa.field(column, schema.field(path).type))
    return pa.schema(fields)


def map_batch(
    batch: pa.RecordBatch, schema: pa.Schema, mapping: Mapping[str, str] | None
) -> pa.RecordBatch:
    """Give a batch the columns of the target."""
    if mapping is None:
        return batch
    columns = [batch.column(path) for path in mapping.values()]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
