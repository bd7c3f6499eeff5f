"""What Python functions wrote in executors, as far as Spark keeps it for the session of a task."""

from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from noetl_contracts.log_chunks import STDERR, STDOUT
from noetl_worker.spark.driver_output import DriverOutput

# With it, Spark starts Python processes for this session alone, and keeps what they write.
SETTING = "spark.sql.pyspark.worker.logging.enabled"
_LINES_MAX = 10_000
_LOCAL = "local"


def with_worker_logs(base: SparkSession, conf: Mapping[str, str]) -> Mapping[str, str]:
    """Have Spark keep what functions write where it runs on this machine, unless `conf` says no.

    On a cluster it starts Python processes in each executor for the task, which `conf` may ask for.
    """
    is_local = (base.sparkContext.master or "").startswith(_LOCAL)
    return {SETTING: "true", **conf} if is_local else conf


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
