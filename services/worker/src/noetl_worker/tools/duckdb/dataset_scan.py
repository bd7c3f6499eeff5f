"""A dataset as a table that DuckDB scans: loaded where it is needed, for it loads pandas.

The files are opened here and never by DuckDB, which has no way to them or to a credential.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.dataset as datasets

from noetl_chassis.blocking_work import StopSign
from noetl_worker.datasets import plan_scan
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.plan_scan import PlannedSource
from noetl_worker.datasets.problems import DatasetProblem


class ScannedDataset(datasets.UnionDataset):  # type: ignore[misc]  # the library has no types
    """A planned source as one table; each scan reads the files anew, a batch at a time."""

    def __init__(self, schema: pa.Schema, children: list[Any]) -> None:
        super().__init__(schema, children)
        self._source: PlannedSource | None = None
        self._lock = threading.Lock()
        self._sign = StopSign()
        self._problem: DatasetProblem | None = None
        self._rejects = Rejects()

    @property
    def problem(self) -> DatasetProblem | None:
        """Return what has ended a scan: the error of DuckDB is only its text."""
        return self._problem

    @property
    def rejects(self) -> Rejects:
        """Return the rows that did not fit; a source that is scanned twice has them once."""
        return self._rejects

    @property
    def leaves_rows_out(self) -> bool:
        """Tell whether rows that do not fit are counted, and do not end the scan."""
        return self._source is not None and self._source.plan.source.on_bad_row != "fail"

    def set_source(self, source: PlannedSource) -> None:
        """Set the files or the table that scans read from now on."""
        self._source = source

    def stop_scans(self) -> None:
        """End every scan: DuckDB does not look at an interrupt while it waits for rows."""
        self._sign.raise_sign()

    def scanner(self, **options: Any) -> Any:
        """Scan some columns of the rows that a filter takes; this is what DuckDB calls."""
        columns: list[str] | None = options.get("columns")
        condition = options.get("filter")
        names = list(self.schema.names) if columns is None else list(columns)
        # The columns of a filter are not among those that are wanted. Arrow does not tell them, but
        # each stands in the filter's text; one that stands there by chance is read as well.
        text = "" if condition is None else str(condition)
        read_columns = [name for name in self.schema.names if name in names or name in text]
        schema = pa.schema([self.schema.field(name) for name in read_columns])
        reader = pa.RecordBatchReader.from_batches(schema, self._iterate(read_columns, condition))
        # It reads a batch ahead, and filters exactly.
        return datasets.Scanner.from_batches(
            reader, columns=names, filter=condition, batch_readahead=1, use_threads=False
        )

    def _iterate(self, columns: list[str], condition: Any) -> Iterator[pa.RecordBatch]:
        assert self._source is not None, "a source is set before a scan"
        rejects = Rejects()
        try:
            yield from self._sign.iterate_until(
                plan_scan.iterate_source(
                    self._source, rejects, columns=columns, condition=condition
                )
            )
        except DatasetProblem as problem:
            self._problem = problem
            raise
        finally:
            with self._lock:
                if rejects.count > self._rejects.count:
                    self._rejects = rejects


def open_dataset(source: PlannedSource) -> ScannedDataset:
    """Make a source scannable."""
    scanned_dataset = ScannedDataset(source.schema, [])
    scanned_dataset.set_source(source)
    return scanned_dataset
