"""What a `kind: spark` task does in its thread: inputs as views, SQL or a function, rows stored."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from noetl_contracts.plain import plain
from noetl_contracts.spread import KEY as _RESERVED
from noetl_storage import table_schema
from noetl_worker.domain import spark_sql
from noetl_worker.spark import (
    checking,
    frame_schema,
    postgres_source,
    source,
    worker_logs,
    writing,
)
from noetl_worker.spark.asking import (
    Ask,
    CodeFailed,
    Copied,
    CopyTarget,
    Given,
    Input,
    Query,
    Rows,
    Stored,
)
from noetl_worker.spark.driver_output import DriverOutput, capture
from noetl_worker.spark.executors import Home, Refused
from noetl_worker.spark.postgres_source import PostgresSource
from noetl_worker.spark.source import NoetlSource
from noetl_worker.spark.spreading import parallelism
from noetl_worker.spark.writing import Plan

_FILE = "<task>"
_ENTRY = "main"
_ARGUMENTS_MAX = 3


def run(base: SparkSession, ask: Ask, output: DriverOutput | None = None) -> Given:
    """Run a task in a session of its own; raises `Refused`, `CodeFailed` and Spark's errors.

    What its code prints and logs goes to the `output`; so does what its functions wrote in
    executors, where Spark keeps it: by itself on the worker's machine, else where `conf` says so.
    """
    conf = ask.conf
    if ask.code is not None and output is not None and not is_remote(base):
        conf = worker_logs.with_worker_logs(base, conf)
    session = opened(base, conf)
    frames = {name: frame_of(session, one, ask.plan.home) for name, one in ask.inputs.items()}
    if ask.code is not None:
        try:
            with capture(output):
                value = _called(session, ask.code, frames, ask.params)
            return _given(value, session, ask.plan)
        finally:
            if output is not None and conf.get(worker_logs.SETTING) == "true":
                worker_logs.add_worker_logs(session, output)
                output.flush()
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    return _written(_queried(session, ask), ask.plan)


def opened(base: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Return a session beside the worker's own: no task sees another one's views or settings."""
    session = base.newSession()
    if not is_remote(session):
        # Spark looks names up in the thread's active session, which is that of the task before.
        classes = session._jvm  # noqa: SLF001 - Spark's own createDataFrame does the same
        active = getattr(classes, "org.apache.spark.sql.classic.SparkSession")
        active.setActiveSession(session._jsparkSession)  # noqa: SLF001 - as above
    session.dataSource.register(NoetlSource)
    session.dataSource.register(PostgresSource)
    session.conf.set("spark.sql.runSQLOnFiles", "false")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    for name, value in conf.items():
        session.conf.set(name, value)
    return session


def is_remote(session: SparkSession) -> bool:
    """Tell whether the driver is a Spark Connect server."""
    return "connect" in type(session).__module__


def frame_of(session: SparkSession, given: Input, home: Home) -> DataFrame:
    """Turn an input into a frame."""
    match given:
        case Rows(table=table):
            return session.createDataFrame(table, frame_schema.spark_schema(table.schema))
        case Stored(refs=refs, is_union=is_union):
            options = source.options_of(
                home, refs, is_union=is_union, partitions=max(1, parallelism(session))
            )
            return session.read.format(source.NAME).options(**options).load()
        case Query(options=options):
            return session.read.format(postgres_source.NAME).options(**options).load()


def _queried(session: SparkSession, ask: Ask) -> DataFrame:

    *views, query = ask.statements
    for text in views:
        found = spark_sql.view(text)
        if found is not None:
            name, body = found
            _frame(session, body, ask).createOrReplaceTempView(name)
        elif ask.is_trusted:
            session.sql(text)
        else:
            checking.refuse_command()
    return _frame(session, query, ask)


def _frame(session: SparkSession, query: str, ask: Ask) -> DataFrame:

    if ask.is_trusted:
        return session.sql(query, args=ask.params or None)
    if is_remote(session):
        text = (
            "SQL cannot be checked at an sc:// address, so that tasks there need an operator's "
            "permission: NOETL_WORKER_SPARK_CODE_ALLOWED=true"
        )
        raise Refused("config", text)
    checking.check_query(session, query)
    frame = session.sql(query, args=ask.params or None)
    checking.check_analysed(frame)
    return frame


def _called(
    session: SparkSession, code: str, frames: Mapping[str, Any], params: dict[str, Any]
) -> Any:
    """Call the task's `main`; what it raises besides Spark's own errors is `CodeFailed`."""
    try:
        main = _main(code)
        wanted = len(inspect.signature(main).parameters)
        return main(*(session, frames, params)[: min(wanted, _ARGUMENTS_MAX)])
    except (PySparkException, Refused):
        raise
    except Exception as problem:
        raise CodeFailed(problem, source=code, file=_FILE) from problem


def _main(code: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"__name__": "noetl_spark_task"}
    exec(compile(code, _FILE, "exec"), names)  # noqa: S102 - the operator has allowed tasks to bring code
    main = names.get(_ENTRY)
    if not callable(main):
        text = "field 'code' must define main(spark, inputs) or main(spark, inputs, params)"
        raise Refused("validation", text)
    found: Callable[..., Any] = main
    return found


def _given(value: Any, session: SparkSession, plan: Plan) -> Given:
    """Store a frame or a table; any other value is the result as it is."""
    if isinstance(value, DataFrame):
        return _written(value, plan)
    if isinstance(value, pa.Table):
        frame = session.createDataFrame(value, frame_schema.spark_schema(value.schema))
        return _written(frame, plan)
    return Given(value=_shown(value))


def _shown(value: Any) -> Any:
    try:
        found = plain(value)
    except ValueError as problem:
        raise Refused("schema", f"main returned what has no JSON form: {problem}") from problem
    if isinstance(found, dict) and isinstance(found.get("rows"), dict):
        found["rows"].pop(_RESERVED, None)
    return found


def _written(frame: DataFrame, plan: Plan) -> Given:

    names = frame.columns
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        text = f"the result has several columns named {', '.join(twice)}: give them names with AS"
        raise Refused("schema", text)
    missing = [name for name in plan.partition_by if name not in names]
    if missing:
        text = f"output.partition_by names {missing[0]!r}, which is no column of the result"
        raise Refused("validation", text)
    schema = frame_schema.arrow_schema(frame.schema)
    manifests = writing.write(frame, plan)
    return Given(columns=names, types=table_schema.format_schema(schema), manifests=manifests)


def prepared(
    base: SparkSession, given: Input, mapping: Mapping[str, str] | None, home: Home
) -> DataFrame:
    """Return the frame of an input with the columns of its target; raises as `run`."""
    frame = frame_of(opened(base, {}), given, home)
    if mapping is None:
        return frame
    names = set(frame.columns)
    for path in mapping.values():
        if path not in names and path.split(".")[0] not in names:
            known = ", ".join(sorted(names)[:20])
            raise Refused("validation", f"there is no source field {path!r}: known: {known}")
    # A column may have a dot in its own name.
    quoted = {path: f"`{path.replace('`', '``')}`" if path in names else path for path in names}
    columns = [
        functions.col(quoted.get(path, path)).alias(column) for column, path in mapping.items()
    ]
    return frame.select(*columns)


def copied(frame: DataFrame, target: CopyTarget) -> Copied:
    """Copy a frame into a table of PostgreSQL; raises as `run`."""
    columns = [
        postgres_source.Column(name=name, is_array=is_array)
        for name, is_array in target.columns.items()
    ]
    counts = postgres_source.copy_in(
        frame,
        postgres_source.CopyPlan(
            home=target.home,
            credential=target.credential,
            schema=target.schema,
            table=target.table,
            done_table=target.done_table,
            columns=columns,
        ),
    )
    return Copied(rows=sum(counts), tasks=sum(1 for count in counts if count))
