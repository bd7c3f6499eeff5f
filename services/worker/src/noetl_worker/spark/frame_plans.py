"""How Spark has planned a frame, as text that is kept with the result of its task."""

from typing import Any

from pyspark.sql import DataFrame

_CHARACTERS_MAX = 64 * 1024
_MODE = "formatted"


def explain_frame(frame: DataFrame) -> str:
    """Return the physical plan of a frame, which is not run for it."""
    known: Any = frame
    if "connect" in type(frame).__module__:
        text = str(known._explain_string(mode=_MODE))  # noqa: SLF001 - it is printed otherwise
    else:
        execution = known._jdf.queryExecution()  # noqa: SLF001 - Spark's own explain does the same
        python_sql = known.sparkSession.sparkContext._jvm.PythonSQLUtils  # noqa: SLF001 - as above
        text = str(python_sql.explainString(execution, _MODE))
    if len(text) > _CHARACTERS_MAX:
        return f"{text[:_CHARACTERS_MAX]}\n... {len(text) - _CHARACTERS_MAX} characters more"
    return text
