"""What a result says of the datasets that its task has read and written."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from msgspec import Struct

from noetl_contracts import codec
from noetl_storage.arrow import table_schema
from noetl_worker.datasets.batch_sink import BatchSink, SinkPlan, fit_schema
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.sink_report import SinkReport
from noetl_worker.domain.check_reports import CheckFindings
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.tools.calls import dataset_places
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.tables.row_checks import (
    CheckScope,
    KeyReader,
    StopHolder,
    find_no_keys,
    open_checks,
)


@contextmanager
def translate_problems(call: Call, field: str) -> Iterator[None]:
    """Turn what a dataset raises into the failure of a task; `field` names it."""
    try:
        yield
    except DatasetProblem as problem:
        error = dataset_places.build_dataset_error(problem, call, field)
        raise ToolFailure(error) from problem


class WrittenRows(Struct, frozen=True, kw_only=True):
    """What a task has written, the columns of the rows, and what their checks have found."""

    report: SinkReport
    schema: pa.Schema | None
    findings: CheckFindings = CheckFindings()


def show_written(written: WrittenRows, *, statement_count: int = 1) -> dict[str, Any]:
    """Say what a task has written; the rows themselves are in the dataset."""
    report, schema = written.report, written.schema
    return {
        "rows": [],
        "row_count": report.row_count,
        "columns": [] if schema is None else schema.names,
        "types": [] if schema is None else table_schema.format_schema(schema),
        "statement_count": statement_count,
        "status": "ok",
        "written": codec.to_builtins(report),
        **show_findings({"output": written.findings}),
    }


def show_findings(findings: Mapping[str, CheckFindings]) -> dict[str, Any]:
    """Write what checks have found, by the name of the input or output, as results have it."""
    reports = [report for item in findings.values() for report in item.reports]
    diverted = {name: item.diverted for name, item in findings.items() if item.diverted}
    return {
        **({"checks": codec.to_builtins(reports)} if reports else {}),
        **({"diverted": diverted} if diverted else {}),
    }


def show_rejects(rejects: Mapping[str, Rejects]) -> dict[str, Any]:
    """Write the rows that did not fit, by the name of their input."""
    return {
        name: {"row_count": item.count, "rows": codec.to_builtins(item.rows)}
        for name, item in rejects.items()
    }


def write_batches(
    plan: SinkPlan,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    *,
    hold_stop: StopHolder,
    read_keys: KeyReader = find_no_keys,
) -> WrittenRows:
    """Write every batch and commit, once in all attempts; raises `DatasetProblem`. It blocks.

    An attempt that finds its task's commit reads no rows, and so checks none.
    """
    sink = BatchSink(plan)
    earlier = sink.find_earlier()
    if earlier is not None:
        return WrittenRows(report=earlier, schema=fit_schema(schema))
    sink.set_schema(schema)
    scope = CheckScope(dataset="output", now=plan.now, read_keys=read_keys, hold_stop=hold_stop)
    with open_checks(plan.sink.expect, scope) as checks:
        checks.check_columns(schema)
        for batch in batches:
            sink.write_batch(checks.filter_batch(batch))
        findings = checks.finish()
        return WrittenRows(report=sink.commit_rows(), schema=sink.schema, findings=findings)
