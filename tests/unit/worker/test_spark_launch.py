"""How Spark's own processes are started."""

import os

from pyspark import java_gateway

from noetl_worker.spark import driver


def test_no_python_runs_between_the_fork_and_spark() -> None:
    """The locks that other threads held at the fork are never free there."""
    assert java_gateway.Popen is driver._spawn_launcher
    started = java_gateway.Popen(["true"], preexec_fn=lambda: os._exit(3), env=dict(os.environ))
    assert started.wait(timeout=60) == 0
