"""Runs a query over files that arrive: started, watched, and ended; loaded when Spark is."""

import logging
import math
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, structs
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import TimestampNTZType, TimestampType

from noetl_playbook.model.streams import OUTPUT_MODES
from noetl_storage.arrow import table_schema
from noetl_worker.datasets.read_plan import ReadPlan
from noetl_worker.spark import shared_session, task_jobs
from noetl_worker.spark.checks import sql_checks
from noetl_worker.spark.grants.granted_sources import bind_grant
from noetl_worker.spark.partition_jobs import parallelism
from noetl_worker.spark.streams import arrived_source, stream_head
from noetl_worker.spark.streams.arrived_source import ArrivedSource
from noetl_worker.spark.streams.batch_writer import BatchWriter
from noetl_worker.spark.streams.checkpoint_folder import CheckpointFolder
from noetl_worker.spark.streams.stream_head import OpenCheckpoint
from noetl_worker.spark.streams.stream_rejects import StreamRejects
from noetl_worker.spark.tables import named_tables
from noetl_worker.spark.tables.store_access import SparkRefusal
from noetl_worker.spark.tables.stream_plans import (
    StreamInput,
    StreamPlan,
    StreamReport,
    StreamWatch,
)
from noetl_worker.spark.task_request import Input, QueryInput, SparkRequest, SparkResult

# Between two looks at a query that runs.
_LOOK_S = 1
# Of Spark's own checkpoint the last batches are enough: the files of a version are few.
_CONF = {
    "spark.sql.streaming.minBatchesToRetain": "2",
    # More batches than end between two looks at the query.
    "spark.sql.streaming.numRecentProgressUpdates": "100",
    "spark.sql.streaming.metricsEnabled": "false",
}
# Spark gives the process that looks for files 10 s to begin, which a busy machine may miss.
_NOT_BEGUN = "Python worker failed to connect back"
_STARTS_MAX = 5
_CALLBACK_LOGGER = "py4j.clientserver"
# Operators of a streaming query that keep state between batches.
_STATEFUL = frozenset({"Aggregate", "Deduplicate", "Distinct", "GlobalLimit", "Window"})


class _Query(Struct, frozen=True, kw_only=True):
    """What a query runs with: its rows, where they go on, and who writes them."""

    frame: DataFrame
    folder: CheckpointFolder
    writer: BatchWriter


def run_stream(base: SparkSession, ask: SparkRequest, watch: StreamWatch) -> SparkResult:
    """Follow an input until the stream ends; raises `SparkRefusal` and Spark's errors."""
    plan = ask.stream
    assert plan is not None, "the tool has described it"
    if task_jobs.is_remote(base):
        text = (
            "mode stream needs its driver in the worker, and this deployment runs Spark at an "
            "sc:// address: send the task to a pool whose workers use another master"
        )
        raise SparkRefusal("config", text)
    group = base.sparkContext.getLocalProperty(shared_session.GROUP) or ""
    checkpoint = stream_head.open_checkpoint(ask, plan)
    grant = plan.home.grant
    session = task_jobs.open_session(base, {**_CONF, **ask.conf}, grant)
    session.dataSource.register(bind_grant(ArrivedSource, grant))
    folder = CheckpointFolder(_make_folder(session), checkpoint)
    try:
        folder.restore()
        rejects = StreamRejects(plan)
        rejects.restore()
        arriving = _build_input(session, plan, checkpoint, rejects)
        frame, statics = _build_frame(session, ask, plan, arriving)
        _check_state(frame, plan)
        _check_groups(frame, ask)
        writer = BatchWriter(
            ask=ask,
            folder=folder,
            watch=watch,
            group=group,
            frames=statics,
            checkpoint=checkpoint,
            rejects=rejects,
        )
        ended_by = _run_query(_Query(frame=frame, folder=folder, writer=writer), plan, watch)
        result = _build_result(frame, writer, ended_by)
        left_out = {plan.name: rejects.found} if rejects.is_wanted else {}
        return structs.replace(result, rejected=left_out)
    finally:
        folder.remove()


def _run_query(query: _Query, plan: StreamPlan, watch: StreamWatch) -> str:
    """Run the query until it ends; return what has ended it."""
    # It tells every batch that failed, with its trace, beside the error of the task.
    logging.getLogger(_CALLBACK_LOGGER).disabled = True
    for attempt in range(1, _STARTS_MAX + 1):
        try:
            ended_by = _follow_query(query, plan, watch)
        except StreamingQueryException as problem:
            if attempt == _STARTS_MAX or watch.is_stopped or not _is_not_begun(problem):
                raise
        else:
            break
    query.writer.store_end()
    return ended_by


def _is_not_begun(problem: StreamingQueryException) -> bool:
    """Tell whether a query ended before it began; a session that is gone tells nothing."""
    try:
        return _NOT_BEGUN in str(problem)
    except (Py4JError, OSError):
        return False


def _follow_query(query: _Query, plan: StreamPlan, watch: StreamWatch) -> str:
    writer = query.writer
    running = _start_query(query, plan.options.trigger_s)
    try:
        return _await_end(running, writer, watch, plan.options.until_s)
    except Exception as problem:
        # What a batch of ours has raised says more than what Spark makes of it.
        if writer.problem is not None:
            raise writer.problem from problem
        raise
    finally:
        _stop_query(running)


def _start_query(query: _Query, trigger_s: float | None) -> StreamingQuery:
    starter = (
        query.frame.writeStream.outputMode(OUTPUT_MODES[query.writer.sink_mode])
        .option("checkpointLocation", query.folder.url)
        .foreachBatch(query.writer.write_batch)
    )
    if trigger_s is None:
        return starter.trigger(availableNow=True).start()
    return starter.trigger(processingTime=f"{math.ceil(trigger_s * 1000)} milliseconds").start()


def _await_end(
    running: StreamingQuery, writer: BatchWriter, watch: StreamWatch, until_s: float | None
) -> str:
    deadline = None if until_s is None else time.monotonic() + until_s
    while not running.awaitTermination(_LOOK_S):
        writer.read_progress(running)
        if watch.is_stopped:
            return "cancel"
        if deadline is not None and time.monotonic() >= deadline:
            writer.close()
            return "until"
    writer.read_progress(running)
    return "available_now"


def _stop_query(running: StreamingQuery) -> None:
    with suppress(Py4JError, PySparkException, OSError):
        running.stop()


def _make_folder(session: SparkSession) -> Path:
    """Make the folder of this attempt in Spark's own scratch folder."""
    scratch = session.sparkContext.getConf().get("spark.local.dir") or tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="stream-", dir=scratch.split(",")[0]))


def _build_input(
    session: SparkSession, plan: StreamPlan, checkpoint: OpenCheckpoint, rejects: StreamRejects
) -> StreamInput:
    return StreamInput(
        home=plan.home,
        plan=ReadPlan(
            address=plan.address,
            source=plan.source,
            format=checkpoint.columns.format,
            schema=checkpoint.columns.schema,
            pieces=[],
        ),
        arrivals=checkpoint.objects.arrivals_prefix,
        rejects=rejects.tasks_prefix,
        tasks=max(1, parallelism(session)),
        files_per_batch=plan.options.files_per_batch,
    )


def _build_frame(
    session: SparkSession, ask: SparkRequest, plan: StreamPlan, arriving: StreamInput
) -> tuple[DataFrame, Mapping[str, DataFrame]]:
    """Build the query over the input that arrives; return it, and the inputs that do not."""
    others = {name: item for name, item in ask.inputs.items() if name != plan.name}
    statics = _read_statics(session, others, ask)
    source = arrived_source.encode_input(arriving)
    arrived = session.readStream.format(arrived_source.NAME).options(source=source).load()
    arrived = _set_watermark(arrived, plan)
    for name, static in {**statics, plan.name: arrived}.items():
        static.createOrReplaceTempView(name)
    frame = task_jobs.run_statements(session, ask)
    if not frame.isStreaming:
        text = f"the SQL does not read input '{plan.name}', which is the one that arrives"
        raise SparkRefusal("validation", text)
    return frame, statics


def _set_watermark(arrived: DataFrame, plan: StreamPlan) -> DataFrame:
    """Say how late rows may come; raises `SparkRefusal` for a column that is not there."""
    watermark = plan.options.watermark
    if watermark is None:
        return arrived
    if watermark.column not in arrived.columns:
        text = (
            f"follow.watermark names '{watermark.column}', which is no column of input "
            f"'{plan.name}': it has {', '.join(arrived.columns[:20])}"
        )
        raise SparkRefusal("validation", text)
    column_type = arrived.schema[watermark.column].dataType
    if not isinstance(column_type, TimestampType | TimestampNTZType):
        text = (
            f"follow.watermark names '{watermark.column}', which is {column_type.simpleString()}: "
            f"it takes a moment, so give input '{plan.name}' a schema with {watermark.column} "
            "TIMESTAMP"
        )
        raise SparkRefusal("validation", text)
    return arrived.withWatermark(
        watermark.column, f"{math.ceil(watermark.delay_s * 1000)} milliseconds"
    )


def _read_statics(
    session: SparkSession, inputs: Mapping[str, Input], ask: SparkRequest
) -> dict[str, DataFrame]:
    """Build the frames of the other inputs; rows of databases are read once, at one moment."""
    with task_jobs.plan_inputs(inputs, ask.plan.home) as (planned_inputs, _):
        frames: dict[str, DataFrame] = {}
        for name, item in planned_inputs.items():
            frame = task_jobs.build_frame(session, item, ask.plan.home, name=name)
            is_moving = isinstance(item, QueryInput)
            frames[name] = task_jobs.stored_once(frame) if is_moving else frame
        return frames


def _check_state(frame: DataFrame, plan: StreamPlan) -> None:
    """Refuse to keep state where executors have folders of their own; raises `SparkRefusal`."""
    if plan.is_near:
        return
    names = sorted(set(sql_checks.list_operators(frame)) & _STATEFUL)
    if names:
        text = (
            f"the query keeps state between batches ({', '.join(names)}), and executors on other "
            "machines have no folder in common to keep it in: run it in a pool whose master is "
            "local[n], or write plain rows and sum them up in a later step"
        )
        raise SparkRefusal("config", text)


def _check_groups(frame: DataFrame, ask: SparkRequest) -> None:
    """Refuse to overwrite what is there with the rows of one batch; raises `SparkRefusal`."""
    assert ask.sink is not None, "the tool has described it"
    if ask.sink.mode == "overwrite" and "Aggregate" not in sql_checks.list_operators(frame):
        text = (
            "output.mode overwrite writes all groups anew with each batch, and the SQL makes no "
            "groups: choose append, or GROUP BY"
        )
        raise SparkRefusal("validation", text)


def _build_result(frame: DataFrame, writer: BatchWriter, ended_by: str) -> SparkResult:
    schema = named_tables.build_arrow_schema(frame.schema)
    return SparkResult(
        columns=schema.names,
        types=table_schema.format_schema(schema),
        written=writer.report,
        checks=list(writer.checks),
        diverted={"output": writer.diverted} if writer.diverted else {},
        stream=StreamReport(
            totals=writer.totals,
            last_batch=writer.last_batch,
            ended_by=ended_by,
            late_rows=writer.late_rows,
        ),
    )
