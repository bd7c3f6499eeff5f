"""The code of Spark tasks runs in a process of its own, over the worker's session."""

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from msgspec import Struct, structs
from tests.support.polling import eventually
from tests.support.sparking import answered, spark_bench, spark_call, stored
from tests.support.task_logs import chunks_of, lines_of
from tests.support.working import EXECUTION, ORGANIZATION, TENANT, Bench, command_of

from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import SparkProgress
from noetl_contracts.errors import ErrorObject
from noetl_worker.tools.spark.code_process import CodeProcesses

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

TASKS = 6
SLOW = f"""\
import time

def slow(number):
    time.sleep(1.5)
    return number

def main(spark, inputs):
    return {{"sum": spark.sparkContext.parallelize(range({TASKS}), {TASKS}).map(slow).sum()}}
"""
LOGGING = """\
import logging

def main(spark, inputs):
    from pyspark.sql import functions as sf

    print("driver begins")
    logging.getLogger("shop").warning("careful")

    @sf.udf("long")
    def double(number):
        print(f"doubling {number}")
        logging.getLogger("shop").error("of %s", number)
        return number * 2

    return spark.range(3).select(double("id").alias("twice"))
"""
SOURCE_AND_TABLE_FUNCTION = """\
def main(spark, inputs):
    from pyspark.sql import functions as sf
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Reader(DataSourceReader):
        def read(self, partition):
            print("reading")
            yield (7,)

    class Numbers(DataSource):
        @classmethod
        def name(cls):
            return "numbers"

        def schema(self):
            return "n int"

        def reader(self, schema):
            return Reader()

    @sf.udtf(returnType="n int")
    class Twice:
        def eval(self, number: int):
            print(f"twice {number}")
            yield number,
            yield number,

    spark.dataSource.register(Numbers)
    read = spark.read.format("numbers").load()
    return {"read": read, "made": Twice(sf.lit(3)), "plain": spark.range(2)}
"""
FAILING = "def main(spark, inputs):\n    print('so far')\n    raise ValueError('no')\n"


class Started(Struct, frozen=True, kw_only=True):
    """A worker whose session has started, what its first task gave, and how far it was told."""

    worker: Bench
    sums: Any
    first_progress: list[SparkProgress]
    later_progress: list[SparkProgress]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(
    tmp_path_factory: pytest.TempPathFactory, earlier_processes: list[CodeProcesses]
) -> AsyncIterator[Started]:
    """The file's worker: its first task waits for the session, the second finds it."""
    folder = tmp_path_factory.mktemp("code")
    first_progress: list[SparkProgress] = []
    later_progress: list[SparkProgress] = []

    async def tell_first(progress: SparkProgress) -> None:
        first_progress.append(progress)

    async def tell_later(progress: SparkProgress) -> None:
        later_progress.append(progress)

    async with spark_bench(folder, spark_master="local[2]", spark_code_allowed=True) as found:
        first = structs.replace(spark_call(code=SLOW), tell_progress=tell_first)
        later = structs.replace(spark_call(sql="SELECT 1 AS one"), tell_progress=tell_later)
        sums = await answered(found, first)
        await answered(found, later)
        yield Started(
            worker=found, sums=sums, first_progress=first_progress, later_progress=later_progress
        )


@pytest.fixture(scope="module")
def worker(started: Started) -> Bench:
    """The worker of every test of this file."""
    return started.worker


@pytest.fixture(scope="module")
def earlier_processes() -> list[CodeProcesses]:
    """Collect those of workers of other files, which may still be in memory."""
    return list_processes()


def list_processes() -> list[CodeProcesses]:
    return [held for held in gc.get_objects() if isinstance(held, CodeProcesses)]


async def failed(worker: Bench, **fields: Any) -> ErrorObject:
    found = await worker.tools.run(spark_call(**fields))
    assert found.error is not None, found.data
    return found.error


async def lives_on(worker: Bench) -> None:
    after = await answered(
        worker, spark_call(code="def main(spark, inputs): return spark.range(2)")
    )
    assert [row["id"] for row in after["rows"]] == [0, 1]


async def test_code_sees_neither_the_process_nor_the_keys_of_the_worker(worker: Bench) -> None:
    code = """
def main(spark, inputs, params):
    import os
    def look(path):
        try:
            return len(os.listdir(path))
        except OSError as problem:
            return type(problem).__name__
    return {
        "pid": os.getpid(),
        "keys": sorted(name for name in os.environ if name.startswith("NOETL_")),
        "work": look(params["work"]),
        "rows": spark.range(3).count(),
    }
"""
    folder = str(Path(worker.tools.spark.open_once()._limits.store_url.removeprefix("file://")))
    found = await answered(worker, spark_call(code=code, params={"work": folder}))
    assert found["pid"] != os.getpid()
    assert found["keys"] == []
    assert isinstance(found["work"], str)
    assert found["rows"] == 3


async def test_several_tables_are_results_by_name(worker: Bench) -> None:
    rows = await stored(worker, [{"id": i, "region": "ab"[i % 2]} for i in range(6)])
    code = """
def main(spark, inputs):
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import functions as sf

    @sf.pandas_udf("long")
    def plus(numbers: pd.Series) -> pd.Series:
        return numbers + 1

    def sizes(group):
        return pd.DataFrame({"region": [group.region[0]], "n": [len(group)]})

    def batches(given):
        for batch in given:
            yield pa.RecordBatch.from_pydict({"twice": [2 * n for n in batch["id"].to_pylist()]})

    o = inputs["o"]
    grouped = o.groupBy("region").applyInPandas(sizes, "region string, n long")
    return {
        "more": o.select(plus("id").alias("m")).orderBy("m"),
        "sizes": grouped.orderBy("n", "region"),
        "twice": o.mapInArrow(batches, "twice long").orderBy("twice"),
        "pandas": pd.DataFrame({"a": [1]}),
        "arrow": pa.table({"b": ["x"]}),
        "note": "all",
    }
"""
    found = await answered(worker, spark_call(code=code, inputs={"o": rows}))
    assert [row["m"] for row in found["more"]["rows"]] == [1, 2, 3, 4, 5, 6]
    assert found["sizes"]["rows"] == [{"region": "a", "n": 3}, {"region": "b", "n": 3}]
    assert [row["twice"] for row in found["twice"]["rows"]] == [0, 2, 4, 6, 8, 10]
    assert found["pandas"]["rows"] == [{"a": 1}]
    assert found["arrow"]["rows"] == [{"b": "x"}]
    assert (found["note"], found["more"]["row_count"]) == ("all", 6)


async def test_a_large_table_of_several_is_an_input_by_reference(worker: Bench) -> None:
    code = """
def main(spark, inputs):
    return {"big": spark.range(200_000).selectExpr("id", "sha2(cast(id as string), 256) as s")}
"""
    found = await answered(worker, spark_call(code=code))
    assert found["big"]["row_count"] == 200_000
    assert "rows" not in found["big"]
    again = await answered(
        worker, spark_call(sql="SELECT sum(id) AS s FROM b", inputs={"b": found["big"]})
    )
    assert again["rows"] == [{"s": 200_000 * 199_999 // 2}]


async def test_each_table_by_name_keeps_its_plan(worker: Bench) -> None:
    code = """
def main(spark, inputs):
    return {
        "few": spark.range(3),
        "big": spark.range(200_000).selectExpr("id", "sha2(cast(id as string), 256) as s"),
        "note": "all",
    }
"""
    found = await answered(worker, spark_call(code=code, explain=True))
    assert "Range (0, 3, step=1" in found["few"]["plan"]
    assert "rows" not in found["big"]
    assert "Range (0, 200000, step=1" in found["big"]["plan"]
    again = await answered(
        worker, spark_call(sql="SELECT count(*) AS n FROM b", inputs={"b": found["big"]})
    )
    assert again["rows"] == [{"n": 200_000}]


async def test_errors_of_main_name_class_and_line(worker: Bench) -> None:
    raised = await failed(worker, code="def main(spark, inputs):\n    x = 1\n    return [][x]\n")
    assert (raised.kind, raised.exception_type) == ("transform", "IndexError")
    assert raised.details is not None
    assert (raised.details["line"], raised.details["line_text"]) == (3, "return [][x]")
    refused = await failed(
        worker, code="def main(spark, inputs):\n    return spark.table('nowhere').count()\n"
    )
    assert (refused.kind, refused.code) == ("db_error", "SPARK")
    assert refused.details is not None
    assert refused.details["line"] == 2
    none = await failed(worker, code="x = 1")
    assert (none.kind, "must define main" in none.message) == ("validation", True)
    wrong = await failed(worker, code="def main(spark inputs): pass")
    assert wrong.exception_type == "SyntaxError"
    left = await failed(worker, code="def main(spark, inputs):\n    raise SystemExit(3)\n")
    assert "exit code 3" in left.message
    await lives_on(worker)


async def test_code_that_ends_its_process_or_the_session_ends_alone(worker: Bench) -> None:
    crash = (
        "import os, signal\ndef main(spark, inputs):\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    assert (await failed(worker, code=crash)).exception_type == "ProcessEnded"
    stop = await failed(worker, code="def main(spark, inputs):\n    spark.stop()\n")
    assert "must not stop" in stop.message
    await lives_on(worker)


async def test_a_spare_process_that_died_is_not_handed_out(
    worker: Bench, earlier_processes: list[CodeProcesses]
) -> None:
    await lives_on(worker)
    (processes,) = [held for held in list_processes() if held not in earlier_processes]

    async def has_spare() -> bool:
        return processes._ready is not None

    await eventually(has_spare)
    spare = processes._ready
    assert spare is not None
    spare.kill_process()

    async def is_known_to_be_dead() -> bool:
        return not spare.is_running

    await eventually(is_known_to_be_dead)
    assert processes._ready is spare
    await lives_on(worker)


async def test_code_that_closes_its_pipes_does_not_last_until_its_timeout(worker: Bench) -> None:
    code = """
import os, time
def main(spark, inputs):
    os.closerange(3, 64)
    time.sleep(3600)
"""
    assert (await failed(worker, code=code)).exception_type == "ProcessEnded"
    await lives_on(worker)


async def test_a_timeout_ends_code_and_its_jobs(worker: Bench) -> None:
    code = """
import threading
def main(spark, inputs):
    slow = spark.range(1000000000000).selectExpr("count_if(id % 7 = hash(id))")
    threading.Thread(target=slow.collect).start()
    while True:
        pass
"""
    error = await failed(worker, code=code, timeout_s=6)
    assert (error.kind, error.retryable) == ("timeout", True)
    await lives_on(worker)
    context = worker.tools.spark_session._session.sparkContext  # type: ignore[union-attr]  # a session was started
    assert list(context.statusTracker().getActiveStageIds()) == []
    for child in psutil.Process(os.getpid()).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            # One waits for the next call, and does nothing.
            is_code = "noetl_worker.spark.code" in child.cmdline()
            assert not is_code or child.cpu_percent(0.5) < 90


async def test_calls_run_side_by_side_and_keep_their_views_apart(worker: Bench) -> None:
    code = """
def main(spark, inputs, params):
    spark.range(params["n"]).createOrReplaceTempView("mine")
    return spark.sql("SELECT count(*) AS n FROM mine")
"""
    found = await asyncio.gather(
        *(answered(worker, spark_call(code=code, params={"n": n})) for n in (3, 5, 8))
    )
    assert [one["rows"][0]["n"] for one in found] == [3, 5, 8]


async def test_a_function_that_raises_tells_partition_and_masked_row(worker: Bench) -> None:
    code = """
def main(spark, inputs):
    from pyspark.sql import functions as sf

    @sf.udf("long")
    def inverse(number, owner):
        return 10 // (number - 70)

    numbers = spark.range(0, 100, 1, 4)
    return numbers.select(inverse("id", sf.lit("ann@example.org")).alias("n"))
"""
    error = await failed(worker, code=code)
    assert (error.kind, error.exception_type) == ("transform", "ZeroDivisionError")
    assert "partition 2, row (int '99', str 'xxx@xxxxxxx.xxx')" in error.message
    assert error.details is not None
    assert error.details["line_text"] == "return 10 // (number - 70)"


async def texts_of(worker: Bench, code: str, **more: Any) -> list[tuple[str, str, str]]:
    before = await logged(worker)
    tool = {"kind": "spark", "code": code, "timeout": 240, **more}
    await worker.run(command_of(f"\n  - {{step: s, tool: {codec.encode_text(tool)}}}\n"))
    return (await logged(worker))[len(before) :]


async def logged(worker: Bench) -> list[tuple[str, str, str]]:
    chunks = await chunks_of(
        worker.payloads, EXECUTION, tenant_id=TENANT, organization_id=ORGANIZATION
    )
    return [(line.stream, line.level, line.text) for line in lines_of(chunks)]


async def test_lines_of_the_driver_and_of_executors_are_in_the_log(worker: Bench) -> None:
    driver = [("stdout", "", "driver begins"), ("logging", "warning", "shop: careful")]
    silent = {"session": {"conf": {"spark.sql.pyspark.worker.logging.enabled": False}}}
    assert await texts_of(worker, LOGGING, **silent) == driver
    found = await texts_of(worker, LOGGING)
    assert found[:2] == driver
    assert sorted(found[2:]) == sorted(
        [
            *(("stdout", "", f"doubling {number}") for number in range(3)),
            *(("logging", "error", f"shop: of {number}") for number in range(3)),
        ]
    )
    assert sorted(await texts_of(worker, SOURCE_AND_TABLE_FUNCTION)) == [
        ("stdout", "", "reading"),
        ("stdout", "", "twice 3"),
    ]
    assert await texts_of(worker, FAILING) == [("stdout", "", "so far")]


async def test_session_start_and_tasks_are_told_while_they_run(started: Started) -> None:
    assert started.sums == {"sum": sum(range(TASKS))}
    phases = [item.phase for item in started.first_progress]
    assert phases == sorted(phases, key=["session", "queue", "job"].index)
    assert phases[0] == "session"
    stages = [stage for item in started.first_progress for stage in item.stages]
    assert {stage.tasks for stage in stages} == {TASKS}
    done = [stage.tasks_done for stage in stages]
    assert done == sorted(done)
    assert any(0 < count < TASKS for count in done)
    assert max(item.jobs for item in started.first_progress) == 1
    # The session is there: its start is told once.
    assert {item.phase for item in started.later_progress} <= {"job"}
