"""A Spark session whose Java process is killed while it starts costs the jobs that wait for it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from tests.support import spark
from tests.support.polling import eventually

from noetl_worker.settings import read_java_environ
from noetl_worker.spark.session import open_spark_session
from noetl_worker.spark.session_options import SessionOptions, SparkLost, SparkUnavailable

pytestmark = pytest.mark.timeout(300)


async def test_a_driver_that_is_killed_while_it_starts_is_lost_and_another_one_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adopt(variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    options = SessionOptions(
        master="local[1]", folder=tmp_path, adopt=adopt, environ=read_java_environ()
    )

    async def is_killed() -> bool:
        found = spark.drivers(psutil.Process().pid)
        spark.kill(found)
        return bool(found)

    async with open_spark_session(options) as spark_session:
        job = spark_session.run_job(lambda session: session.range(3).count(), name="counting")
        waiting = asyncio.create_task(job)
        await eventually(is_killed, timeout_s=60)
        with pytest.raises(SparkLost, match="killed"):
            await waiting
        assert (
            await spark_session.run_job(lambda session: session.range(3).count(), name="again") == 3
        )


async def test_what_java_says_of_a_setting_is_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adopt(variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    options = SessionOptions(
        master="local[1]",
        folder=tmp_path,
        adopt=adopt,
        environ=read_java_environ(),
        conf={"spark.driver.memory": "9x"},
    )
    async with open_spark_session(options) as spark_session:
        with pytest.raises(SparkUnavailable, match="9x"):
            await spark_session.run_job(lambda session: session.range(3).count(), name="counting")
