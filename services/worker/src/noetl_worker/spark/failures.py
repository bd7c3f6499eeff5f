"""Errors of Spark as playbooks see them: loaded when Spark is."""

import re
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from noetl_contracts.errors import ErrorObject
from noetl_worker.domain.failures import build_error, classify_exception
from noetl_worker.spark.session_options import SparkLost
from noetl_worker.spark.tables import store_access
from noetl_worker.spark.task_request import CodeFailed

_CODE = "SPARK"
_MESSAGE_CHARACTERS_MAX = 2_000
_LOST = re.compile(
    r"ExecutorLostFailure|OutOfMemoryError|SparkContext was shut down|Job aborted.*executor"
)
_TOO_LARGE = re.compile(r"bigger than spark\.driver\.maxResultSize")
# A plan or a Java trace says nothing to the author of a playbook.
_TRACE = re.compile(r"\n\s*(?:at [\w.$]+\(|JVM stacktrace|'?\w+ ?\[|\+- |== )")


def explain_problem(problem: Exception) -> ErrorObject | None:
    """Say what a job failed of; None for what is none of Spark's errors."""
    match problem:
        case store_access.SparkRefusal():
            return _build_refusal_error(store_access.find_refusal(str(problem)) or {})
        case CodeFailed(kind=kind, bases=bases, found=user_traceback):
            return classify_exception(
                kind,
                bases,
                user_traceback.message,
                traceback=user_traceback.traceback,
                line=user_traceback.line,
                line_text=user_traceback.line_text,
            )
        case SparkLost():
            return build_error("connection", str(problem), code=_CODE, source="spark")
    return _explain_spark_error(problem)


def _explain_spark_error(problem: Exception) -> ErrorObject | None:

    if not isinstance(problem, PySparkException | Py4JError):
        return None
    whole = str(problem)
    about = store_access.find_refusal(whole)
    if about is not None:
        return _build_refusal_error(about)
    text = _TRACE.split(whole, maxsplit=1)[0].strip()[:_MESSAGE_CHARACTERS_MAX]
    fields: dict[str, Any] = {
        "code": _CODE,
        "exception_type": type(problem).__name__,
        "source": "spark",
    }
    if _TOO_LARGE.search(whole):
        return build_error("payload_too_large", text, **fields)
    if _LOST.search(whole):
        return build_error("connection", text, **fields)
    details = _list_details(problem) if isinstance(problem, PySparkException) else {}
    return build_error("db_error", text, details=details or None, **fields)


def _list_details(problem: Any) -> dict[str, Any]:
    named = {"condition": problem.getCondition(), "sqlstate": problem.getSqlState()}
    return {name: value for name, value in named.items() if value}


def _build_refusal_error(about: dict[str, Any]) -> ErrorObject:
    fields = {"source": "spark", **about}
    kind, message = str(fields.pop("kind", "internal")), str(fields.pop("message", ""))
    known = {name: fields[name] for name in ("code", "pg_code", "source") if name in fields}
    return build_error(kind, message, **known)
