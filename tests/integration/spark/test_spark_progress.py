"""While Spark starts and works, a task tells how far it is: its session, jobs, stages and tasks."""

from pathlib import Path

import pytest
from msgspec import structs
from tests.support.sparking import spark_bench, spark_call, trusting

from noetl_contracts.commands.task_metrics import SparkProgress

TASKS = 6
CODE = f"""\
import time

def slow(number):
    time.sleep(1.5)
    return number

def main(spark, inputs):
    return {{"sum": spark.sparkContext.parallelize(range({TASKS}), {TASKS}).map(slow).sum()}}
"""


@pytest.mark.timeout(300)
async def test_session_start_and_tasks_are_told_while_they_run(tmp_path: Path) -> None:
    spark_progress: list[SparkProgress] = []

    async def tell(progress: SparkProgress) -> None:
        spark_progress.append(progress)

    async with spark_bench(tmp_path, spark_master="local[2]") as worker:
        trusted = trusting(worker)
        call = structs.replace(spark_call(code=CODE), tell_progress=tell)
        outcome = await trusted.tools.run(call)
        assert outcome.error is None, outcome.error
        assert outcome.data == {"sum": sum(range(TASKS))}
        heard = len(spark_progress)
        # The session is there: its start is told once.
        quick = structs.replace(spark_call(sql="SELECT 1 AS one"), tell_progress=tell)
        assert (await trusted.tools.run(quick)).error is None
        assert {item.phase for item in spark_progress[heard:]} <= {"job"}

    phases = [item.phase for item in spark_progress[:heard]]
    assert phases == sorted(phases, key=["session", "queue", "job"].index)
    assert phases[0] == "session"
    stages = [stage for item in spark_progress[:heard] for stage in item.stages]
    assert {stage.tasks for stage in stages} == {TASKS}
    done = [stage.tasks_done for stage in stages]
    assert done == sorted(done)
    assert any(0 < count < TASKS for count in done)
    assert max(item.jobs for item in spark_progress[:heard]) == 1
