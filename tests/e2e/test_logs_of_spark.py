"""A Spark task on a whole stack: its progress is shown, and its lines are in its log."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.desk import Desk
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(400)

PLAYBOOK = """\
workflow:
  - step: count
    tool:
      kind: spark
      timeout: 240
      code: |
        def main(spark, inputs):
            import logging
            from pyspark.sql import functions as sf

            print("driver begins")

            @sf.udf("long")
            def double(number):
                print(f"doubling {number}")
                logging.getLogger("shop").warning("of %s", number)
                return number * 2

            total = spark.range(2).select(double("id").alias("n")).agg(sf.sum("n")).collect()[0][0]
            print(f"total {total}")
            return {"total": total}
"""


@pytest.fixture(scope="module")
def spark_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = (
        *("--workers", "1", "--no-s3"),
        *("--set", "WORKER_SPARK_MASTER=local[1]"),
        *("--set", "WORKER_SPARK_CODE_ALLOWED=true"),
    )
    with running_stack(tmp_path_factory.mktemp("spark-logs") / "stack", *settings) as running:
        yield running


def test_progress_and_lines_of_a_spark_task_are_shown(spark_stack: Stack, tmp_path: Path) -> None:
    desk = Desk(spark_stack, tmp_path)
    ran = desk.type("run", str(desk.write("spark-log", PLAYBOOK)), "--timeout", "240")
    assert ran.code == 0, ran
    assert "count: Spark session starts" in ran.out + ran.err, ran
    execution_id = next(
        word for word in (ran.out + ran.err).split() if word.isdigit() and len(word) > len("2026")
    )
    typed = desk.type("logs", execution_id, "count")
    shown = [line.partition(" #1.1 ")[2] for line in typed.out.splitlines()]
    assert shown[:2] == ["stdout: driver begins", "stdout: total 2"]
    assert sorted(shown[2:]) == [
        "stdout: doubling 0",
        "stdout: doubling 1",
        "warning: shop: of 0",
        "warning: shop: of 1",
    ]
