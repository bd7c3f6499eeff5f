"""Spark by itself, in the settings of a worker's session: tasks on stdin, their seconds on stdout."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute
from msgspec import Struct

from noetl_worker.settings import read_java_environ, set_variables
from noetl_worker.spark import driver
from noetl_worker.spark.session_options import SessionOptions

MASTER = "local[2]"


class SparkTask(Struct, frozen=True, kw_only=True):
    """A query over `rows`, which is the table `t`, or a script whose `main` returns a table."""

    sql: str = ""
    rows: list[dict[str, Any]] = []
    code: str = ""
    params: dict[str, Any] = {}


class SparkTime(Struct, frozen=True, kw_only=True):
    """The seconds of a task, its rows, and what their column `total` adds up to."""

    seconds: float
    rows: int
    total: int

    @property
    def sums(self) -> tuple[int, int]:
        """What must be equal wherever the task runs."""
        return self.rows, self.total


def main() -> None:
    """Start a session with its first query, then run one task after another."""
    began = time.perf_counter()
    options = SessionOptions(
        master=MASTER,
        folder=Path(sys.argv[1]),
        adopt=set_variables,
        environ=read_java_environ(),
    )
    session = driver.start(options)
    try:
        _write(began, session.sql("SELECT 1 AS total").toArrow())
        for line in sys.stdin.buffer:
            task = msgspec.json.decode(line, type=SparkTask)
            began = time.perf_counter()
            _write(began, _run(session, task))
    finally:
        driver.stop(session)


def _run(session: Any, task: SparkTask) -> pa.Table:
    if task.sql:
        session.createDataFrame(pa.Table.from_pylist(task.rows)).createOrReplaceTempView("t")
        return session.sql(task.sql).toArrow()
    names: dict[str, Callable[..., Any]] = {}
    exec(task.code, names)  # noqa: S102 - our own script, as the worker runs it
    return names["main"](session, {}, task.params).toArrow()


def _write(began: float, table: pa.Table) -> None:
    seconds = time.perf_counter() - began
    total = pa.compute.sum(table["total"]).as_py()
    answer = SparkTime(seconds=seconds, rows=len(table), total=total)
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
