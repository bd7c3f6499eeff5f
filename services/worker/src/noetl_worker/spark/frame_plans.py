"""How Spark has planned a frame, as text: it may hold secrets."""

from typing import Any

from pyspark.sql import DataFrame

_MODE = "formatted"


def explain_frame(frame: DataFrame) -> str:
    """Return the physical plan of a frame, which is not run for it."""
    any_frame: Any = frame
    if "connect" in type(frame).__module__:
        return str(any_frame._explain_string(mode=_MODE))  # noqa: SLF001 - it is printed otherwise
    execution = any_frame._jdf.queryExecution()  # noqa: SLF001 - Spark's own explain does the same
    python_sql = any_frame.sparkSession.sparkContext._jvm.PythonSQLUtils  # noqa: SLF001 - as above
    return str(python_sql.explainString(execution, _MODE))
