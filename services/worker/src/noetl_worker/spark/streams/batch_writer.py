"""Writes the batches of a stream, each exactly once; Spark calls it for one after another."""

import asyncio
import math
import threading
import time
from collections.abc import Mapping
from typing import Any

from msgspec import structs
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from noetl_chassis import failpoints, identity
from noetl_chassis.failpoints import Failpoint
from noetl_chassis.observability import instruments, names
from noetl_contracts.commands.data_checks import CheckReport, add_reports
from noetl_contracts.commands.task_metrics import StreamProgress
from noetl_worker.datasets import file_sink
from noetl_worker.datasets.sink_report import SinkReport
from noetl_worker.domain.check_reports import DIVERTED_BYTES, DIVERTED_ROWS, take_first_rows
from noetl_worker.spark import checked_writes, task_jobs
from noetl_worker.spark.streams import arrived_source
from noetl_worker.spark.streams.checkpoint_folder import CheckpointFolder
from noetl_worker.spark.streams.stream_head import OpenCheckpoint
from noetl_worker.spark.streams.stream_rejects import StreamRejects
from noetl_worker.spark.tables.stream_plans import BatchName, StreamWatch
from noetl_worker.spark.task_request import SparkRequest, SparkResult

_NO_WATERMARK = "1970-01-01T00:00:00"


class StreamClosed(Exception):  # noqa: N818 - it says what has happened
    """Ends a batch that begins after the stream has ended; the next run has it."""


class BatchWriter:
    """Stores what a batch reads, then writes its rows under a name that only this batch has."""

    def __init__(
        self,
        *,
        ask: SparkRequest,
        checkpoint: OpenCheckpoint,
        folder: CheckpointFolder,
        watch: StreamWatch,
        group: str,
        frames: Mapping[str, DataFrame],
        rejects: StreamRejects,
    ) -> None:
        assert ask.sink is not None, "the tool has described it"
        self._ask = ask
        self._sink = ask.sink
        self._head = checkpoint.head
        self._folder = folder
        self._watch = watch
        self._group = group
        self._frames = frames
        self._rejects = rejects
        self._arrivals = checkpoint.objects.open_arrivals()
        # Held while a batch is written.
        self._writing = threading.Lock()
        self._is_closed = False
        done = folder.find_done_offset()
        self._step = None if done is None else arrived_source.read_step(done)
        self._waiting = 0
        # Late rows that Spark has left out, by batch; of batches that it tells no more of, the sum.
        self._late_rows: dict[int, int] = {}
        self._earlier_late_rows = 0
        self.totals = checkpoint.totals
        self.problem: Exception | None = None
        self.report: SinkReport | None = None
        # Of all batches of this attempt.
        self.checks: tuple[CheckReport, ...] = ()
        self.diverted: list[dict[str, Any]] = []
        self.last_batch: int | None = None

    @property
    def sink_mode(self) -> str:
        """Return how rows join those that are there."""
        return self._sink.mode

    def write_batch(self, frame: DataFrame, batch: int) -> None:
        """Write one batch; Spark calls it again for a batch that was not noted as done."""
        try:
            with self._writing:
                self._write_once(frame, batch)
        except StreamClosed:
            raise
        except Exception as problem:
            self.problem = problem
            raise

    def close(self) -> None:
        """Return once the batch that runs is written, and refuse the next one."""
        with self._writing:
            self._is_closed = True

    def _write_once(self, frame: DataFrame, batch: int) -> None:
        if self._is_closed:
            raise StreamClosed
        began_at = time.monotonic()
        # So that progress shows the jobs of the batch, and a cancelled task ends them.
        frame.sparkSession.sparkContext.setJobGroup(
            self._group, f"{self._ask.step} batch {batch}", interruptOnCancel=True
        )
        self._folder.store_begin(batch, self.totals)
        _pass_failpoint(Failpoint.WORKER_BATCH_BEGUN)
        result = self._write_rows(frame, batch)
        report = result.written
        assert report is not None, "a dataset was written"
        _pass_failpoint(Failpoint.WORKER_BATCH_WRITTEN)
        if report.is_repeated:
            # State goes on from the rows of a batch, though they are written already.
            frame.write.format("noop").mode("overwrite").save()
        self.report, self.last_batch = report, batch
        self._add_findings(result)
        self._rejects.take_batch(arrived_source.read_step(self._folder.read_offset(batch)))
        self.totals = structs.replace(
            self.totals,
            batches=self.totals.batches + 1,
            files=self.totals.files + self._count_files(batch),
            rows=self.totals.rows + report.row_count,
        )
        self._record_metrics(report, time.monotonic() - began_at)

    def _add_findings(self, result: SparkResult) -> None:
        """Add what the checks of a batch have found, and the first rows that were left out."""
        self.checks = add_reports(self.checks, result.checks)
        rows = [*self.diverted, *result.diverted.get("output", ())][:DIVERTED_ROWS]
        self.diverted = take_first_rows(rows, DIVERTED_BYTES)

    def _write_rows(self, frame: DataFrame, batch: int) -> SparkResult:
        """Write the rows of a batch under a name that no other batch has."""
        scope = None
        if self._sink.expect is not None:
            scope = task_jobs.build_scope(self._frames, self._ask)
        if self._ask.table is not None:
            assert self._ask.stream is not None, "the task is one of mode stream"
            name = BatchName(
                checkpoint=self._ask.stream.options.checkpoint,
                series=self._head.series,
                number=batch,
            )
            return checked_writes.write_table(frame, self._ask.table, name, scope)
        assert self._ask.target is not None, "rows go into a dataset or a table"
        target = structs.replace(
            self._ask.target,
            identity=file_sink.build_commit_identity(f"{self._head.series}/{batch}"),
            attempt=identity.mint_token()[:8],
        )
        return checked_writes.write_dataset(frame, target, scope)

    def _record_metrics(self, report: SinkReport, seconds: float) -> None:
        assert self._ask.stream is not None, "the task is one of mode stream"
        labels = {names.CHECKPOINT: self._ask.stream.options.checkpoint}
        rows = 0 if report.is_repeated else report.row_count
        instruments.add_to_counter(names.STREAM_ROWS, rows, labels=labels)
        instruments.record_measurement(names.STREAM_BATCH_DURATION, seconds, labels=labels)
        instruments.set_gauge(names.STREAM_FILES_BEHIND, self._waiting, labels=labels)

    def _count_files(self, batch: int) -> int:
        """Count the files of a batch, and those that waited when it began."""
        step = arrived_source.read_step(self._folder.read_offset(batch))
        if self._step == step:
            return 0
        self._step = step
        arrivals = self._arrivals.find_step(step) if step else None
        if arrivals is None:
            return 0
        self._waiting = arrivals.waiting
        return len(arrivals.files)

    @property
    def late_rows(self) -> int:
        """Return how many rows of this attempt came later than the watermark allows."""
        return self._earlier_late_rows + sum(self._late_rows.values())

    def _add_late_rows(self, recent: dict[int, int]) -> None:
        """Take over the counts of recent batches; of those before, the sum is kept."""
        first = min(recent, default=0)
        for batch in [batch for batch in self._late_rows if batch < first]:
            self._earlier_late_rows += self._late_rows.pop(batch)
        self._late_rows |= recent

    def store_end(self) -> None:
        """Store that the last batch is done."""
        if self.last_batch is not None:
            self._folder.store_end(self.last_batch, self.totals)

    def read_progress(self, running: StreamingQuery) -> None:
        """Take over the latest figures of the query."""
        if self.last_batch is None:
            return
        recent: list[Any] = running.recentProgress
        self._add_late_rows({int(item["batchId"]): _count_late_rows(item) for item in recent})
        figures = recent[-1] if recent else {}
        self._watch.progress = StreamProgress(
            batch=self.last_batch,
            rows=self.totals.rows,
            files=self.totals.files,
            files_behind=self._waiting,
            input_rows_per_s=_read_rate(figures, "inputRowsPerSecond"),
            processed_rows_per_s=_read_rate(figures, "processedRowsPerSecond"),
            batch_s=_read_batch_s(figures),
            watermark=_read_watermark(figures),
        )


def _pass_failpoint(point: Failpoint) -> None:
    """Pass a failpoint in a thread that has no event loop."""
    asyncio.run(failpoints.pass_failpoint(point))


def _read_rate(figures: Any, name: str) -> float:
    """Return a rate, 0 where Spark has none yet."""
    value: Any = figures.get(name) if figures else None
    is_finite = isinstance(value, int | float) and math.isfinite(value)
    return round(float(value), 1) if is_finite else 0.0


def _count_late_rows(figures: Any) -> int:
    """Count what came too late for the state of each operator."""
    operators: Any = figures.get("stateOperators") or ()
    return sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators)


def _read_watermark(figures: Any) -> str:
    """Return the watermark; Spark tells of the year 1970 before there is one."""
    times: Any = (figures.get("eventTime") if figures else None) or {}
    text = str(times.get("watermark") or "")
    return "" if text.startswith(_NO_WATERMARK) else text


def _read_batch_s(figures: Any) -> float:
    durations: Any = (figures.get("durationMs") if figures else None) or {}
    return round(float(durations.get("triggerExecution", 0)) / 1000, 3)
