"""What imports Spark, loaded when it is first needed: a worker without Spark tasks pays nothing."""

import importlib
from typing import Any

from noetl_contracts.errors import ErrorObject
from noetl_worker.domain.failures import build_error
from noetl_worker.spark.session_options import SparkUnavailable

_JOBS = "noetl_worker.spark.task_jobs"
_WRITES = "noetl_worker.spark.checked_writes"
_STREAMS = "noetl_worker.spark.streams.stream_query"
_FAILING = "noetl_worker.spark.failures"


def load_jobs() -> Any:
    """Load `noetl_worker.spark.task_jobs`; raises `SparkUnavailable`."""
    return _load_spark_module(_JOBS)


def load_writes() -> Any:
    """Load `noetl_worker.spark.checked_writes`; raises `SparkUnavailable`."""
    return _load_spark_module(_WRITES)


def load_streams() -> Any:
    """Load `noetl_worker.spark.streams.stream_query`; raises `SparkUnavailable`."""
    return _load_spark_module(_STREAMS)


def explain_failure(problem: Exception, source: str | None = None) -> ErrorObject | None:
    """Say what a job of a task with the code `source` failed of; None for other errors."""
    if isinstance(problem, SparkUnavailable):
        return build_error("config", str(problem), source="spark")
    error: ErrorObject | None = _load_spark_module(_FAILING).explain_problem(problem, source)
    return error


def _load_spark_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        text = "Spark is not installed here: install noetl-worker[spark]"
        raise SparkUnavailable(text) from problem
