"""What Python functions wrote in executors, as far as Spark keeps it for the session of a task."""

from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from noetl_contracts.log_chunks import STDERR, STDOUT
from noetl_worker.spark.driver_output import DriverOutput

# With it, Spark starts Python processes for this session alone, and keeps what they write.
SETTING = "spark.sql.pyspark.worker.logging.enabled"
_LINES_MAX = 10_000


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
        _add(row, output)
    if len(rows) > _LINES_MAX:
        text = f"executors wrote more than {_LINES_MAX:,} lines: the rest is left out"
        output.add_line(text, level="warning")


def _add(row: Row, output: DriverOutput) -> None:
    text = str(row["msg"])
    if row["logger"] in {STDOUT, STDERR}:
        output.write(row["logger"], f"{text}\n")
        return
    named = text if row["logger"] == "root" else f"{row['logger']}: {text}"
    output.add_line(named, level=str(row["level"]).lower())
