"""What Spark says of a failed job, as the author of a playbook is told it."""

import pytest
from pyspark.errors import PySparkException

from noetl_worker.spark import failures
from noetl_worker.spark.session_options import SparkUnreachable

UDF = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/opt/pyspark/worker.py", line 100, in main
    process()
  File "<task>", line 3, in divide
ZeroDivisionError: division by zero
"""
CODE = "def main(spark, inputs):\n    def divide(n):\n        return 1 / n\n"
ABORTED = (
    "An error occurred while calling o77.collectToPython.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 "
    "failed 1 times, most recent failure: Lost task 0.0 in stage 3.0 (TID 9) (host executor "
    "driver): {cause}\n\tat org.apache.spark.Some.method(Some.scala:1)"
)


def test_a_function_that_raises_is_told_by_its_class_and_line() -> None:
    error = failures.explain_problem(PySparkException(UDF), CODE)
    assert error is not None
    assert (error.kind, error.exception_type, error.message) == (
        "transform",
        "ZeroDivisionError",
        "division by zero",
    )
    assert error.details is not None
    assert (error.details["line"], error.details["line_text"]) == (3, "return 1 / n")
    assert error.retryable is False


@pytest.mark.parametrize(
    "cause", ["java.lang.OutOfMemoryError: Java heap space", "ExecutorLostFailure (exit code 137)"]
)
def test_memory_that_ran_out_names_the_setting_and_is_not_tried_again(cause: str) -> None:
    error = failures.explain_problem(PySparkException(ABORTED.format(cause=cause)))
    assert error is not None
    assert (error.kind, error.retryable) == ("limit", False)
    assert "NOETL_WORKER_SPARK_MEMORY_BYTES" in error.message
    assert cause in error.message


def test_a_lost_executor_is_tried_again() -> None:
    cause = "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)"
    error = failures.explain_problem(PySparkException(ABORTED.format(cause=cause)))
    assert error is not None
    assert (error.kind, error.retryable) == ("connection", True)


def test_a_cluster_that_does_not_answer_is_tried_again() -> None:
    error = failures.explain_problem(SparkUnreachable("nothing answers at spark://a:7077"))
    assert error is not None
    assert (error.kind, error.code, error.retryable) == ("connection", "SPARK", True)


def test_the_cause_comes_first() -> None:
    error = failures.explain_problem(
        PySparkException(ABORTED.format(cause="bad value in column a"))
    )
    assert error is not None
    assert error.message == "bad value in column a"
