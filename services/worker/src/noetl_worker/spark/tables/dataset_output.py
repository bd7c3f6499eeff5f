"""A frame's rows into the files of a dataset, written by the executors; the driver commits them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from noetl_worker.datasets import batch_sink
from noetl_worker.datasets.address import OpenStore
from noetl_worker.datasets.batch_sink import SinkPlan
from noetl_worker.datasets.commit_log import DataFile
from noetl_worker.datasets.file_writer import DatasetWriter, WriteScope
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.sink_report import SinkReport
from noetl_worker.spark.tables import file_source, named_tables
from noetl_worker.spark.tables.dataset_plans import DatasetTarget
from noetl_worker.spark.tables.store_access import SparkRefusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MANIFEST = "manifest binary"


class WrittenDataset(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, and the columns that it has."""

    report: SinkReport
    schema: pa.Schema


def write_dataset(frame: "DataFrame", target: DatasetTarget) -> WrittenDataset:
    """Write a frame and commit it; raises what Spark raises, and `SparkRefusal`."""
    schema = named_tables.build_arrow_schema(frame.schema)
    try:
        sink = open_sink(target)
        earlier = sink.find_earlier()
        if earlier is not None:
            return WrittenDataset(report=earlier, schema=schema)
        sink.check_schema(schema)
        if sink.partition_by:
            frame = _gather_by_values(frame, sink.partition_by)
        layout = msgspec.structs.replace(target.sink, partition_by=sink.partition_by)
        open_to_all = msgspec.structs.replace(target, sink=layout, catalog=None)
        writer = _FileTask(open_to_all, sink.write_scope)
        rows = frame.mapInArrow(writer, _MANIFEST).collect()
        files = [msgspec.msgpack.decode(bytes(row[0]), type=DataFile) for row in rows]
        return WrittenDataset(report=sink.commit_files(files, schema), schema=schema)
    except DatasetProblem as problem:
        raise SparkRefusal(problem.kind, problem.message) from problem


def open_sink(target: DatasetTarget) -> Any:
    """Open the target of a frame; raises `DatasetProblem`, and `SparkRefusal`."""
    plan = SinkPlan(
        address=target.address,
        sink=target.sink,
        identity=target.identity,
        attempt=target.attempt,
        now=target.now,
        account=file_source.open_account(target.home, target.address),
        catalog=target.catalog,
    )
    return batch_sink.open_sink(plan)


def _gather_by_values(frame: "DataFrame", columns: tuple[str, ...]) -> "DataFrame":
    """Bring rows of equal values together; Spark cuts what is much larger than the rest."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        text = f"output.partition_by names '{missing[0]}', which is no column of the result"
        raise SparkRefusal("validation", text)
    return frame.hint("rebalance", *columns)


class _FileTask:
    """The part of `write_dataset` that runs in executors, once for each task."""

    def __init__(self, target: DatasetTarget, scope: WriteScope) -> None:
        self._target = target
        self._scope = scope

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a task's rows; Spark carries the list of its files."""
        files: list[DataFile] = []
        try:
            files = self._write_all(batches)
        except DatasetProblem as problem:
            raise SparkRefusal(problem.kind, problem.message) from problem
        for file in files:
            data: Any = msgspec.msgpack.encode(file)
            yield pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], names=["manifest"])

    def _write_all(self, batches: Iterator[pa.RecordBatch]) -> list[DataFile]:
        target, context = self._target, TaskContext.get()
        account = file_source.open_account(target.home, target.address)
        store = OpenStore(target.address, account)
        # Of two runs of one task, as Spark may start them, the files have different names.
        task = 0 if context is None else context.partitionId()
        run = 0 if context is None else context.attemptNumber()
        scope = msgspec.structs.replace(self._scope, task=task, run=run)
        writer: DatasetWriter | None = None
        for batch in batches:
            if writer is None:
                writer = DatasetWriter(store, target.sink, scope, batch.schema)
            writer.write_batch(batch)
        return [] if writer is None else writer.finish_files()
