"""What Python functions wrote in executors, as far as Spark keeps it for the session of a task."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from noetl_contracts.log_chunks import STDERR, STDOUT
from noetl_worker.spark.driver_output import DriverOutput
from noetl_worker.spark.postgres import postgres_source
from noetl_worker.spark.tables import file_source, payload_source

# With it, Spark starts Python processes for this session alone, and keeps what they write.
SETTING = "spark.sql.pyspark.worker.logging.enabled"
_LINES_MAX = 10_000
_LOCAL = "local"
# Functions of rows, and of tables: Spark has one pattern for the latter and for `explode`.
_FUNCTIONS = ("PYTHON_UDF", "GENERATOR")
_RELATION, _PYTHON_TABLE = "DataSourceV2Relation", "PythonTable"
_OWN_SOURCES = frozenset({payload_source.NAME, file_source.NAME, postgres_source.NAME})


def with_worker_logs(base: SparkSession, conf: Mapping[str, str]) -> Mapping[str, str]:
    """Have Spark keep what functions write where it runs on this machine, unless `conf` says no.

    On a cluster it starts Python processes in each executor for the task, which `conf` may ask for.
    """
    is_local = (base.sparkContext.master or "").startswith(_LOCAL)
    return {SETTING: "true", **conf} if is_local else conf


@contextmanager
def keep_needed_logs(session: SparkSession, frame: DataFrame) -> Iterator[None]:
    """Keep what functions write while a frame is read in the block, if it calls functions at all.

    Else the frame is read by Python processes that are there, whose start would take seconds.
    """
    if session.conf.get(SETTING, "false") != "true" or _runs_python(session, frame):
        yield
        return
    session.conf.set(SETTING, "false")
    try:
        yield
    finally:
        session.conf.set(SETTING, "true")


def _runs_python(session: SparkSession, frame: DataFrame) -> bool:
    """Tell whether a frame is made by Python of the task: a function, or a source of its own."""
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - Spark has no other way to show a plan
    classes: Any = session._jvm  # noqa: SLF001 - as above
    patterns = classes.org.apache.spark.sql.catalyst.trees.TreePattern
    if any(plan.containsPattern(getattr(patterns, name)()) for name in _FUNCTIONS):
        return True
    leaves = plan.collectLeaves()
    return any(_is_foreign_source(leaves.apply(place)) for place in range(leaves.size()))


def _is_foreign_source(leaf: Any) -> bool:
    if leaf.getClass().getSimpleName() != _RELATION:
        return False
    table = leaf.table()
    is_python = table.getClass().getSimpleName() == _PYTHON_TABLE
    return is_python and table.name() not in _OWN_SOURCES


def add_worker_logs(session: SparkSession, output: DriverOutput) -> None:
    """Put what functions wrote into a task's log, behind what its driver wrote, by time."""
    try:
        logs = session.tvf.python_worker_logs().select("ts", "level", "logger", "msg")
        rows = logs.orderBy("ts").limit(_LINES_MAX + 1).collect()
    except PySparkException as problem:
        text = f"what executors wrote cannot be read: {type(problem).__name__}"
        output.add_line(text, level="error")
        return
    for row in rows[:_LINES_MAX]:
        _add_row(row, output)
    if len(rows) > _LINES_MAX:
        text = f"executors wrote more than {_LINES_MAX:,} lines: the rest is left out"
        output.add_line(text, level="warning")


def _add_row(row: Row, output: DriverOutput) -> None:
    text = str(row["msg"])
    if row["logger"] in {STDOUT, STDERR}:
        output.write_text(row["logger"], f"{text}\n")
        return
    named_text = text if row["logger"] == "root" else f"{row['logger']}: {text}"
    output.add_line(named_text, level=str(row["level"]).lower())
