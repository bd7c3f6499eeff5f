"""What the code of Spark tasks writes is in their log, in the driver and in executors."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.sparking import spark_bench, trusting
from tests.support.task_logs import chunks_of, lines_of
from tests.support.working import EXECUTION, ORGANIZATION, TENANT, Bench, command_of

from noetl_contracts import codec

CODE = """\
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


@pytest.mark.timeout(300)
async def test_lines_of_the_driver_and_of_executors_are_in_the_log(tmp_path: Path) -> None:
    async with spark_bench(tmp_path, spark_master="local[2]", spark_code_allowed=True) as worker:
        trusted = trusting(worker)
        driver = [("stdout", "", "driver begins"), ("logging", "warning", "shop: careful")]
        silent = {"session": {"conf": {"spark.sql.pyspark.worker.logging.enabled": False}}}
        assert await texts_of(trusted, CODE, **silent) == driver
        found = await texts_of(trusted, CODE)
        assert found[:2] == driver
        assert sorted(found[2:]) == sorted(
            [
                *(("stdout", "", f"doubling {number}") for number in range(3)),
                *(("logging", "error", f"shop: of {number}") for number in range(3)),
            ]
        )
        assert sorted(await texts_of(trusted, SOURCE_AND_TABLE_FUNCTION)) == [
            ("stdout", "", "reading"),
            ("stdout", "", "twice 3"),
        ]
        assert await texts_of(trusted, FAILING) == [("stdout", "", "so far")]
