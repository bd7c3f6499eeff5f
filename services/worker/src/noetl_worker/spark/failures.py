"""Errors of Spark as playbooks see them: loaded when Spark is."""

import re
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from noetl_contracts.errors import ErrorObject
from noetl_worker.domain.failures import build_error, classify_exception
from noetl_worker.spark.session_options import SparkLost, SparkUnreachable
from noetl_worker.spark.tables import store_access

_CODE = "SPARK"
# What tracebacks call the code of a task.
FILE = "<task>"
# Before the form of the row with which a function was called that raised.
ROW_MARK = "noetl row: "
_MESSAGE_CHARACTERS_MAX = 2_000
_LOST = re.compile(r"ExecutorLostFailure|SparkContext was shut down|Job aborted.*executor")
# An executor that the system has killed had more memory than it may have.
_MEMORY = re.compile(
    r"OutOfMemoryError|MemoryError\b|[Ee]xit (?:code|status):? 137|Container killed by YARN"
)
_MORE_MEMORY = (
    "give Spark more memory (NOETL_WORKER_SPARK_MEMORY_BYTES for the driver and local executors, "
    "spark.executor.memory in NOETL_WORKER_SPARK_CONF for others), or cut the rows into more "
    "partitions"
)
# What Spark and py4j say before the cause.
_AROUND = re.compile(
    r"^An error occurred while calling [\w.$]+\.\s*:?\s*(?:[\w.$]+Exception: )?"
    r"|Job aborted due to stage failure: .*?most recent failure: Lost task [^:]+?\): "
    r"|^org\.apache\.spark\.\w+Exception: ",
    re.DOTALL,
)
_PYTHON_FRAME = re.compile(r'File "<task>", line (\d+)')
_PYTHON_END = re.compile(
    r"^(?:\w+\.)*(\w+(?:Error|Exception|Exit|Interrupt|Warning)\b)(?:: (.*))?$"
)
_ROW = re.compile(rf"(?m)^{ROW_MARK}(.*)$")
_TOO_LARGE = re.compile(r"bigger than spark\.driver\.maxResultSize")
# A plan or a Java trace says nothing to the author of a playbook.
_TRACE = re.compile(r"\n\s*(?:at [\w.$]+\(|JVM stacktrace|'?\w+ ?\[|\+- |== )")


def explain_problem(problem: Exception, source: str | None = None) -> ErrorObject | None:
    """Say what a job failed of; None for what is none of Spark's errors.

    `source` is the code of the task, of which the line that failed is shown.
    """
    match problem:
        case store_access.SparkRefusal():
            return _build_refusal_error(store_access.find_refusal(str(problem)) or {})
        case SparkLost() | SparkUnreachable():
            return build_error("connection", str(problem), code=_CODE, source="spark")
    return _explain_spark_error(problem, source)


def _explain_spark_error(problem: Exception, source: str | None) -> ErrorObject | None:
    if not isinstance(problem, PySparkException | Py4JError):
        return None
    problem_text = str(problem)
    about = store_access.find_refusal(problem_text)
    if about is not None:
        return _build_refusal_error(about)
    raised_error = _find_raised(problem_text, source)
    if raised_error is not None:
        return raised_error
    text = _TRACE.split(_AROUND.sub("", problem_text), maxsplit=1)[0].strip()[
        :_MESSAGE_CHARACTERS_MAX
    ]
    fields: dict[str, Any] = {
        "code": _CODE,
        "exception_type": type(problem).__name__,
        "source": "spark",
    }
    if _TOO_LARGE.search(problem_text):
        return build_error("payload_too_large", text, **fields)
    if _MEMORY.search(problem_text):
        return build_error("limit", f"Spark ran out of memory: {_MORE_MEMORY} ({text})", **fields)
    if _LOST.search(problem_text):
        return build_error("connection", text, **fields)
    details = _list_details(problem) if isinstance(problem, PySparkException) else {}
    return build_error("db_error", text, details=details or None, **fields)


def _find_raised(problem_text: str, source: str | None) -> ErrorObject | None:
    """Find what a function of the task has raised in an executor."""
    _, sign, trace = problem_text.rpartition("Traceback (most recent call last):")
    lines = _PYTHON_FRAME.findall(trace)
    if not sign or not lines:
        return None
    ends = [match for line in trace.splitlines() if (match := _PYTHON_END.match(line.strip()))]
    if not ends:
        return None
    kind, message = ends[0][1], ends[0][2] or ""
    row = _ROW.search(trace)
    if row is not None:
        message = f"{message} ({row[1]})"
    line = int(lines[-1])
    texts = (source or "").splitlines()
    return classify_exception(
        kind,
        [kind, "Exception"],
        message,
        traceback=f"{sign}{trace.split(chr(10) + chr(9) + 'at ', maxsplit=1)[0]}",
        line=line,
        line_text=texts[line - 1].strip() if line <= len(texts) else "",
    )


def _list_details(problem: Any) -> dict[str, Any]:
    optional_details = {"condition": problem.getCondition(), "sqlstate": problem.getSqlState()}
    return {name: value for name, value in optional_details.items() if value}


def _build_refusal_error(about: dict[str, Any]) -> ErrorObject:
    fields = {"source": "spark", **about}
    kind, message = str(fields.pop("kind", "internal")), str(fields.pop("message", ""))
    error_fields = {name: fields[name] for name in ("code", "pg_code", "source") if name in fields}
    details = {"checks": fields["checks"]} if "checks" in fields else None
    return build_error(kind, message, details=details, **error_fields)
