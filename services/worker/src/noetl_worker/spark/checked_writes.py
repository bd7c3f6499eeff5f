"""Frames that are checked, and then written into a dataset or a table."""

from collections.abc import Callable

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from noetl_playbook.model.expectations import Expectations
from noetl_storage.arrow import table_schema
from noetl_worker.spark.checks import row_checks
from noetl_worker.spark.checks.row_checks import CheckedFrame, CheckScope
from noetl_worker.spark.postgres import table_copy
from noetl_worker.spark.postgres.table_copy import CopyColumn
from noetl_worker.spark.tables import dataset_output, named_tables
from noetl_worker.spark.tables.dataset_output import WrittenDataset
from noetl_worker.spark.tables.dataset_plans import DatasetTarget
from noetl_worker.spark.tables.stream_plans import BatchName, TableTarget
from noetl_worker.spark.task_request import CopyCounts, CopyTarget, SparkResult


def write_dataset(frame: DataFrame, target: DatasetTarget, scope: CheckScope | None) -> SparkResult:
    """Check a frame, and write it into a dataset; raises what Spark raises, and `SparkRefusal`."""
    return _write_checked(
        frame, target.sink.expect, scope, lambda rows: dataset_output.write_dataset(rows, target)
    )


def write_table(
    frame: DataFrame, target: TableTarget, batch: BatchName, scope: CheckScope | None
) -> SparkResult:
    """Check a batch, and write it into a table; raises as `write_dataset`, and `ToolFailure`."""

    def write_rows(rows: DataFrame) -> WrittenDataset:
        report = target.writer.write_batch(
            batch, rows.columns, lambda place: copy_frame(rows, place)
        )
        return WrittenDataset(report=report, schema=named_tables.build_arrow_schema(rows.schema))

    return _write_checked(frame, target.sink.expect, scope, write_rows)


def copy_frame(frame: DataFrame, target: CopyTarget) -> CopyCounts:
    """Copy a frame into a table of PostgreSQL; raises what Spark raises, and `SparkRefusal`."""
    columns = [
        CopyColumn(name=name, type=type_, category=category)
        for name, (type_, category) in target.columns.items()
    ]
    plan = table_copy.CopyPlan(
        home=target.home,
        credential=target.credential,
        schema=target.schema,
        table=target.table,
        done_table=target.done_table,
        columns=columns,
        target=target.target,
    )
    counts = table_copy.copy_in(frame, plan)
    return CopyCounts(rows=sum(counts), tasks=sum(1 for count in counts if count))


def _write_checked(
    frame: DataFrame,
    expected: Expectations | None,
    scope: CheckScope | None,
    write_rows: Callable[[DataFrame], WrittenDataset],
) -> SparkResult:
    checked = CheckedFrame(frame=frame, reports=[])
    try:
        if expected is not None and scope is not None:
            # It is read twice: to check it, and to write it.
            frame = frame.persist(StorageLevel.DISK_ONLY)
            checked = row_checks.check_frame("output", frame, expected, scope)
        written_dataset = write_rows(checked.frame)
    finally:
        if expected is not None:
            frame.unpersist()
    return SparkResult(
        columns=written_dataset.schema.names,
        types=table_schema.format_schema(written_dataset.schema),
        written=written_dataset.report,
        checks=list(checked.reports),
        diverted={"output": checked.diverted} if checked.diverted else {},
    )
