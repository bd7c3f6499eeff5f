"""What imports Spark, loaded when it is first needed: a worker without Spark tasks pays nothing."""

import importlib
from typing import Any

from noetl_contracts.errors import ErrorObject
from noetl_worker.domain.failures import failure
from noetl_worker.spark.starting import SparkUnavailable

_JOBS = "noetl_worker.spark.jobs"
_FAILING = "noetl_worker.spark.failing"


def jobs() -> Any:
    """Load `noetl_worker.spark.jobs`; raises `SparkUnavailable`."""
    return _loaded(_JOBS)


def explained(problem: Exception) -> ErrorObject | None:
    """Say what a job failed of; None for what is none of Spark's errors."""
    if isinstance(problem, SparkUnavailable):
        return failure("config", str(problem), source="spark")
    error: ErrorObject | None = _loaded(_FAILING).explained(problem)
    return error


def _loaded(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        text = "Spark is not installed here: install noetl-worker[spark]"
        raise SparkUnavailable(text) from problem
