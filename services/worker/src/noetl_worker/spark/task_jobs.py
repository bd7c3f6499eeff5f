"""What a `kind: spark` task does in its thread: inputs as views, SQL or a function, rows stored."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from msgspec import structs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from noetl_contracts import spread_table
from noetl_contracts.json_values import list_repeated_names
from noetl_storage.arrow import table_schema
from noetl_worker.datasets import read_plan
from noetl_worker.spark import (
    checked_writes,
    code_call,
    event_log,
    frame_plans,
    needed_columns,
    shared_session,
    worker_logs,
)
from noetl_worker.spark.checks import row_checks, sql_checks
from noetl_worker.spark.checks.row_checks import CheckedFrame, CheckScope
from noetl_worker.spark.code_call import CodeCall, CodeRunner
from noetl_worker.spark.driver_output import DriverOutput
from noetl_worker.spark.grants.granted_sources import bind_grant
from noetl_worker.spark.grants.job_grant import JobGrant
from noetl_worker.spark.partition_jobs import parallelism
from noetl_worker.spark.postgres import postgres_source, shared_snapshots
from noetl_worker.spark.postgres.postgres_source import PostgresSource
from noetl_worker.spark.session_options import PARTITIONS_MIN, SHUFFLE_PARTITIONS
from noetl_worker.spark.tables import (
    file_source,
    named_tables,
    part_writer,
    payload_source,
)
from noetl_worker.spark.tables.dataset_plans import FileInput
from noetl_worker.spark.tables.file_source import FileSource
from noetl_worker.spark.tables.payload_source import NoetlSource
from noetl_worker.spark.tables.store_access import SparkRefusal, StoreAddress
from noetl_worker.spark.task_request import (
    Input,
    QueryInput,
    RowsInput,
    SparkRequest,
    SparkResult,
    StoredInput,
)
from noetl_worker.sql import lexer

# So many partitions of a shuffle for each core of a cluster.
_TASKS_A_CORE = 2


def run(
    base: SparkSession,
    ask: SparkRequest,
    output: DriverOutput | None = None,
    runner: CodeRunner | None = None,
) -> SparkResult:
    """Run a task in a session of its own; raises `SparkRefusal`, `CodeFailed` and Spark's errors.

    Code runs where the `runner` has it. What its functions wrote in executors goes to the `output`,
    where Spark keeps it: by itself on the worker's machine, else where `conf` says so.
    """
    conf = ask.conf
    if ask.code is not None and output is not None and not is_remote(base):
        conf = worker_logs.with_worker_logs(base, conf)
    with (
        event_log.hold_event_log(base, ask.kept_events),
        _hold_session(base, conf, ask.plan.home.grant) as session,
        plan_inputs(ask.inputs, ask.plan.home) as (inputs, moving),
    ):
        frames = {
            name: build_frame(session, task_input, ask.plan.home, name=name)
            for name, task_input in inputs.items()
        }
        # The rows that are checked are those that are used.
        checked_moving = moving & ask.expected.keys()
        frames |= {name: stored_once(frames[name]) for name in checked_moving}
        checked_frames = _check_inputs(frames, ask)
        frames |= {name: task_input.frame for name, task_input in checked_frames.items()}
        if ask.code is None:
            prunable = {name: inputs[name] for name in inputs.keys() - ask.expected.keys()}
            frame = _run_statements_once(session, ask, frames, moving - checked_moving, prunable)
            return _add_findings(_write_frame(frame, ask, frames), ask, checked_frames)
        # Nobody can tell how often the code will use a frame.
        frames |= {name: stored_once(frames[name]) for name in moving - checked_moving}
        try:
            return _add_findings(_run_code(session, ask, frames, runner), ask, checked_frames)
        finally:
            if output is not None and conf.get(worker_logs.SETTING) == "true":
                worker_logs.add_worker_logs(session, output)
                output.flush_lines()


def _run_code(
    session: SparkSession,
    ask: SparkRequest,
    frames: Mapping[str, DataFrame],
    runner: CodeRunner | None,
) -> SparkResult:
    """Run a task's `main` in its process, and store the tables that it returned."""
    assert runner is not None, "code comes with what runs it"
    call = CodeCall(
        code=ask.code or "", inputs=list(frames), params=ask.params, mark="", name=ask.step
    )
    with shared_session.run_main(session, call, frames, runner) as (value, tables):
        if code_call.SINGLE in tables:
            return _write_table(session, tables[code_call.SINGLE], ask, frames)
        if ask.target is not None:
            text = "main returned no table: a task with output.path returns a single frame"
            raise SparkRefusal("validation", text)
        if isinstance(value, dict) and isinstance(value.get("rows"), dict):
            # The code made the value: it cannot stand for a stored table.
            value["rows"].pop(spread_table.KEY, None)
        result_by_name = {
            name: _write_table(session, table, ask, frames) for name, table in tables.items()
        }
        return SparkResult(value=value, named=result_by_name)


def _write_table(
    session: SparkSession, table: DataFrame, ask: SparkRequest, frames: Mapping[str, DataFrame]
) -> SparkResult:
    """Write a table that code returned."""
    if is_remote(session):
        return _write_frame(table, ask, frames)
    with worker_logs.keep_needed_logs(session, table):
        return _write_frame(table, ask, frames)


@contextmanager
def plan_inputs(
    inputs: Mapping[str, Input], home: StoreAddress
) -> Iterator[tuple[dict[str, Input], frozenset[str]]]:
    """Yield a task's inputs, their reads planned, and the names of those that may run only once."""
    reads = {
        name: task_input.options
        for name, task_input in inputs.items()
        if isinstance(task_input, QueryInput)
    }
    with shared_snapshots.plan_reads(reads, home) as planned_reads:
        input_by_name = {
            name: QueryInput(options=options) for name, options in planned_reads.options.items()
        }
        yield {**inputs, **input_by_name}, planned_reads.moving


def _run_statements_once(
    session: SparkSession,
    ask: SparkRequest,
    frames: Mapping[str, DataFrame],
    moving: frozenset[str],
    prunable: Mapping[str, Input],
) -> DataFrame:
    """Run a task's statements; what would be read twice, and differ, is stored first.

    Of `prunable` inputs the columns that no statement needs are not read.
    """
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    answer = run_statements(session, ask)
    # What else a trusted task does may not be done twice.
    are_views = all(lexer.parse_temporary_view(text) for text in ask.statements[:-1])
    narrow_inputs = _narrow_inputs(prunable, answer) if are_views and not is_remote(session) else {}
    if narrow_inputs:
        narrow_frames = {
            name: build_frame(session, task_input, ask.plan.home, name=name)
            for name, task_input in narrow_inputs.items()
        }
        frames = {**frames, **narrow_frames}
        for name, frame in narrow_frames.items():
            frame.createOrReplaceTempView(name)
        answer = run_statements(session, ask)
    reads = needed_columns.list_read_inputs(answer) if moving and not is_remote(session) else None
    uses = None if reads is None else Counter(reads)
    repeated = [name for name in moving if uses is None or uses[name] > 1]
    if not repeated:
        return answer
    for name in repeated:
        stored_once(frames[name]).createOrReplaceTempView(name)
    return run_statements(session, ask)


def _narrow_inputs(inputs: Mapping[str, Input], frame: DataFrame) -> dict[str, Input]:
    """Return inputs with fewer columns, of which a query needs no others."""
    if not any(isinstance(item, FileInput | QueryInput) for item in inputs.values()):
        return {}
    needed_by_input = needed_columns.find_needed_columns(frame)
    narrow: dict[str, Input] = {}
    for name in inputs.keys() & needed_by_input.keys():
        task_input = inputs[name]
        if isinstance(task_input, FileInput):
            plan = read_plan.narrow_plan(task_input.plan, needed_by_input[name])
            if plan is not None:
                narrow[name] = structs.replace(task_input, plan=plan)
        elif isinstance(task_input, QueryInput):
            options = shared_snapshots.narrow_read(task_input.options, needed_by_input[name])
            narrow[name] = QueryInput(options=options)
    return narrow


def stored_once(frame: DataFrame) -> DataFrame:
    """Run a frame now, and return one of its rows: executors that lose them fail the job."""
    return frame.localCheckpoint(eager=True)


def _check_inputs(frames: Mapping[str, DataFrame], ask: SparkRequest) -> dict[str, CheckedFrame]:
    """Hold the inputs to what is expected of them; raises `SparkRefusal`."""
    return {
        name: row_checks.check_frame(
            f"input '{name}'", frames[name], expected, build_scope(frames, ask)
        )
        for name, expected in ask.expected.items()
    }


def build_scope(frames: Mapping[str, DataFrame], ask: SparkRequest) -> CheckScope:
    """Return where the checks of a task run."""
    assert ask.now is not None, "a task whose rows are checked has a moment"
    return CheckScope(frames=frames, now=ask.now, is_trusted=ask.is_trusted)


def _add_findings(
    result: SparkResult, ask: SparkRequest, checked: Mapping[str, CheckedFrame]
) -> SparkResult:
    """Add what checks have found, and the rows of inputs that were left out."""
    reports = [report for check_report in checked.values() for report in check_report.reports]
    diverted = {
        name: check_report.diverted
        for name, check_report in checked.items()
        if check_report.diverted
    }
    result = structs.replace(
        result,
        checks=[*reports, *result.checks],
        diverted={**diverted, **result.diverted},
    )
    rejected_by_input = {
        name: file_source.read_rejects(check_report.home, check_report.rejects)
        for name, check_report in ask.inputs.items()
        if isinstance(check_report, FileInput) and check_report.plan.source.on_bad_row != "fail"
    }
    return structs.replace(result, rejected=rejected_by_input) if rejected_by_input else result


def open_session(
    base: SparkSession, conf: Mapping[str, str], grant: JobGrant | None
) -> SparkSession:
    """Return a session beside the worker's own: no task sees another one's views or settings.

    Its data sources open what the grant names.
    """
    session = base.newSession()
    if not is_remote(session):
        # Spark looks names up in the thread's active session, which is that of the task before.
        classes = session._jvm  # noqa: SLF001 - Spark's own createDataFrame does the same
        active = getattr(classes, "org.apache.spark.sql.classic.SparkSession")
        active.setActiveSession(session._jsparkSession)  # noqa: SLF001 - as above
    for source in (NoetlSource, PostgresSource, FileSource):
        session.dataSource.register(bind_grant(source, grant))
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.conf.set("spark.sql.runSQLOnFiles", "false")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    if not is_remote(session) and not session.sparkContext.getConf().contains(SHUFFLE_PARTITIONS):
        count = max(PARTITIONS_MIN, _TASKS_A_CORE * parallelism(session))
        session.conf.set(SHUFFLE_PARTITIONS, str(count))
    for name, value in conf.items():
        session.conf.set(name, value)
    return session


@contextmanager
def _hold_session(
    base: SparkSession, conf: Mapping[str, str], grant: JobGrant | None
) -> Iterator[SparkSession]:
    """Hold the session of one task; a Spark Connect server forgets it with the block."""
    session = open_session(base, conf, grant)
    try:
        yield session
    finally:
        if is_remote(session):
            connect_session: Any = session
            with suppress(PySparkException):
                connect_session.client.release_session()
            # At the end of the process it would wait for ever.
            connect_session.client.close()


def is_remote(session: SparkSession) -> bool:
    """Tell whether the driver is a Spark Connect server."""
    return "connect" in type(session).__module__


def build_frame(
    session: SparkSession, task_input: Input, home: StoreAddress, *, name: str = ""
) -> DataFrame:
    """Turn an input into a frame; `name` is how the task calls it."""
    match task_input:
        case RowsInput(table=table):
            return session.createDataFrame(table, named_tables.build_spark_schema(table.schema))
        case StoredInput(refs=refs, is_union=is_union):
            options = payload_source.build_options(
                home, refs, is_union=is_union, partitions=max(1, parallelism(session))
            )
            return session.read.format(payload_source.NAME).options(**options).load()
        case FileInput():
            text = file_source.encode_input(
                structs.replace(task_input, tasks=max(1, parallelism(session)))
            )
            options = {"source": text, needed_columns.INPUT_OPTION: name}
            return session.read.format(file_source.NAME).options(**options).load()
        case QueryInput(options=options):
            return session.read.format(postgres_source.NAME).options(**options).load()


def run_statements(session: SparkSession, ask: SparkRequest) -> DataFrame:
    """Run the statements of a task over views that are there, and return the last one's rows."""
    *views, query = ask.statements
    for text in views:
        temporary_view = lexer.parse_temporary_view(text)
        if temporary_view is not None:
            name, body = temporary_view
            _run_query(session, body, ask).createOrReplaceTempView(name)
        elif ask.is_trusted:
            session.sql(text)
        else:
            sql_checks.refuse_command()
    return _run_query(session, query, ask)


def _run_query(session: SparkSession, query: str, ask: SparkRequest) -> DataFrame:

    if ask.is_trusted:
        return session.sql(query, args=ask.params or None)
    if is_remote(session):
        text = (
            "SQL cannot be checked at an sc:// address, so that tasks there need an operator's "
            "permission: NOETL_WORKER_SPARK_CODE_ALLOWED=true"
        )
        raise SparkRefusal("config", text)
    sql_checks.check_query(session, query)
    frame = session.sql(query, args=ask.params or None)
    sql_checks.check_analysed(frame)
    return frame


def _write_frame(
    frame: DataFrame, ask: SparkRequest, frames: Mapping[str, DataFrame]
) -> SparkResult:
    plan = ask.plan
    names = frame.columns
    if repeated_names := list_repeated_names(names):
        text = (
            f"the result has several columns named {', '.join(repeated_names)}: give them "
            "names with AS"
        )
        raise SparkRefusal("schema", text)
    text = frame_plans.explain_frame(frame) if ask.is_explained else ""
    if ask.target is not None:
        scope = None if ask.target.sink.expect is None else build_scope(frames, ask)
        dataset_result = checked_writes.write_dataset(frame, ask.target, scope)
        return structs.replace(dataset_result, physical_plan=text)
    missing_columns = [name for name in plan.partition_by if name not in names]
    if missing_columns:
        text = f"output.partition_by names {missing_columns[0]!r}, which is no column of the result"
        raise SparkRefusal("validation", text)
    schema = named_tables.build_arrow_schema(frame.schema)
    manifests = part_writer.write_frame(frame, plan)
    types = table_schema.format_schema(schema)
    return SparkResult(columns=names, types=types, manifests=manifests, physical_plan=text)


def prepared(
    base: SparkSession, task_input: Input, mapping: Mapping[str, str] | None, home: StoreAddress
) -> DataFrame:
    """Return the frame of an input with the columns of its target; raises as `run`."""
    with plan_inputs({"source": task_input}, home) as (inputs, _):
        # The snapshot is another connection's: it does not end with this block.
        frame = build_frame(open_session(base, {}, home.grant), inputs["source"], home)
    if mapping is None:
        return frame
    names = set(frame.columns)
    for path in mapping.values():
        if path not in names and path.split(".")[0] not in names:
            text = ", ".join(sorted(names)[:20])
            raise SparkRefusal("validation", f"there is no source field {path!r}: known: {text}")
    # A column may have a dot in its own name.
    quoted = {path: f"`{path.replace('`', '``')}`" if path in names else path for path in names}
    columns = [
        functions.col(quoted.get(path, path)).alias(column) for column, path in mapping.items()
    ]
    return frame.select(*columns)
