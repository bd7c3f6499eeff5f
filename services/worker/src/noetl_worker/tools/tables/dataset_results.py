"""What a result says of the datasets that its task has read and written."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from noetl_contracts import codec
from noetl_storage.arrow import table_schema
from noetl_worker.datasets.batch_sink import BatchSink, SinkPlan, fit_schema
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.sink_report import SinkReport
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.tools.calls import dataset_places
from noetl_worker.tools.calls.call import Call


@contextmanager
def translate_problems(call: Call, field: str) -> Iterator[None]:
    """Turn what a dataset raises into the failure of a task; `field` names it."""
    try:
        yield
    except DatasetProblem as problem:
        error = dataset_places.build_dataset_error(problem, call, field)
        raise ToolFailure(error) from problem


def show_written(
    report: SinkReport, schema: pa.Schema | None, *, statement_count: int = 1
) -> dict[str, Any]:
    """Say what a task has written; the rows themselves are in the dataset."""
    return {
        "rows": [],
        "row_count": report.row_count,
        "columns": [] if schema is None else schema.names,
        "types": [] if schema is None else table_schema.format_schema(schema),
        "statement_count": statement_count,
        "status": "ok",
        "written": codec.to_builtins(report),
    }


def show_rejects(rejects: Mapping[str, Rejects]) -> dict[str, Any]:
    """Write the rows that did not fit, by the name of their input."""
    return {
        name: {"row_count": item.count, "rows": codec.to_builtins(item.rows)}
        for name, item in rejects.items()
    }


def write_batches(
    plan: SinkPlan, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> tuple[SinkReport, pa.Schema | None]:
    """Write every batch and commit, once in all attempts; raises `DatasetProblem`. It blocks."""
    sink = BatchSink(plan)
    earlier = sink.find_earlier()
    if earlier is not None:
        return earlier, fit_schema(schema)
    sink.set_schema(schema)
    for batch in batches:
        sink.write_batch(batch)
    return sink.commit_rows(), sink.schema
