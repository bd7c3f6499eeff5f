"""What a Spark session is started with, and which Java it gets."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from noetl_chassis import java
from noetl_chassis.java import JavaMissing
from noetl_worker import wiring
from noetl_worker.settings import Settings
from noetl_worker.spark.session import SharedSparkSession, load_driver
from noetl_worker.spark.session_options import (
    SessionOptions,
    SparkUnavailable,
    build_spark_settings,
    parse_conf,
    read_conf,
)

pytestmark = pytest.mark.unit


def options(tmp_path: Path, **fields: object) -> SessionOptions:
    known = {"master": "local[2]", "folder": tmp_path, "adopt": dict, "environ": {}}
    return SessionOptions(**{**known, **fields})  # type: ignore[arg-type]  # each test sets what it is about


def fake_java(folder: Path, *, version: str, has_vector: bool = True) -> Path:
    """A `java` that says what Java says of itself."""
    program = folder / "bin/java"
    program.parent.mkdir(parents=True)
    refuse = "" if has_vector else 'case "$*" in *vector*) exit 1;; esac; '
    program.write_text(f'#!/bin/sh\n{refuse}echo \'openjdk version "{version}"\' >&2; echo "$@"\n')
    program.chmod(0o700)
    return folder


def test_an_old_java_is_passed_over_for_the_next(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", version="11.0.2")
    new = fake_java(tmp_path / "new", version="21.0.1")
    environ = {"JAVA_HOME": str(old), "PATH": f"{new}/bin"}
    assert java.prepare_java_home(environ, folder=tmp_path) == new


def test_a_java_without_the_vector_module_is_wrapped(tmp_path: Path) -> None:
    small = fake_java(tmp_path / "small", version="21.0.1", has_vector=False)
    home = java.prepare_java_home({"JAVA_HOME": str(small)}, folder=tmp_path / "own")
    wrapper = home / "bin/java"
    assert stat.S_IMODE(wrapper.stat().st_mode) == 0o700
    given = [str(wrapper), "-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""]
    output = subprocess.run(given, capture_output=True, text=True, check=True)  # noqa: S603 - written above
    assert output.stdout == "-cp a b Main \n"


def test_no_java_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_WHEEL", "no_such_package")
    old = fake_java(tmp_path / "old", version="1.8.0_292")
    with pytest.raises(JavaMissing, match=r"version 8.*set JAVA_HOME, or install"):
        java.prepare_java_home({"JAVA_HOME": str(old), "PATH": ""}, folder=tmp_path)


@pytest.mark.parametrize("master", ["local", "local[4]", "spark://127.0.0.1:7077"])
def test_a_session_on_this_machine_listens_to_nobody_else(tmp_path: Path, master: str) -> None:
    spark_settings = build_spark_settings(options(tmp_path, master=master))
    assert spark_settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert spark_settings["spark.ui.enabled"] == "false"


def test_a_cluster_must_reach_its_driver(tmp_path: Path) -> None:
    spark_settings = build_spark_settings(options(tmp_path, master="spark://cluster.example:7077"))
    assert "spark.driver.bindAddress" not in spark_settings


def test_a_cluster_repeats_lost_tasks_and_cuts_shuffles_by_its_size(tmp_path: Path) -> None:
    found = build_spark_settings(options(tmp_path))
    assert (found["spark.task.maxFailures"], found["spark.speculation"]) == ("1", "false")
    assert found["spark.sql.shuffle.partitions"] == "8"
    cluster = build_spark_settings(options(tmp_path, master="spark://cluster.example:7077"))
    assert cluster["spark.speculation"] == "false"
    left_to_spark = {"spark.task.maxFailures", "spark.stage.maxConsecutiveAttempts"}
    assert not cluster.keys() & {*left_to_spark, "spark.sql.shuffle.partitions"}


def test_executors_of_a_cluster_get_what_they_need_and_no_secret(tmp_path: Path) -> None:
    hidden = "hidden"
    config = Settings(
        payload_url="s3://store",
        nats_url=f"nats://worker:{hidden}@nats:4222",
        payload_secret_key=hidden,
        secret_key=hidden,
        spark_master="spark://cluster.example:7077",
        pool="big",
    )
    given = wiring.build_spark_options(config, tmp_path)
    found = build_spark_settings(given)
    assert found["spark.executorEnv.NOETL_WORKER_PAYLOAD_URL"] == "s3://store"
    assert found["spark.executorEnv.NOETL_WORKER_POOL"] == "big"
    assert hidden not in str(found)
    near = build_spark_settings(structs.replace(given, master="local[2]"))
    assert "spark.executorEnv.NOETL_WORKER_POOL" not in near


def test_the_page_is_shown_on_loopback_alone(tmp_path: Path) -> None:
    found = build_spark_settings(options(tmp_path, has_page=True))
    assert (found["spark.ui.enabled"], found["spark.driver.host"]) == ("true", "127.0.0.1")
    with pytest.raises(SparkUnavailable, match=r"NOETL_WORKER_SPARK_UI .* on loopback alone"):
        build_spark_settings(options(tmp_path, master="spark://a.example:7077", has_page=True))


def test_wrong_settings_end_the_tasks_that_need_spark_and_not_the_worker(tmp_path: Path) -> None:
    conf, problem = read_conf("spark.jars")
    assert (conf, problem.partition(": ")[0]) == ({}, "NOETL_WORKER_SPARK_CONF")
    with pytest.raises(SparkUnavailable, match=r"'spark\.jars' is not of the form"):
        load_driver().start(options(tmp_path, problem=problem))


def test_the_operators_settings_have_precedence(tmp_path: Path) -> None:
    conf = parse_conf("spark.executor.cores=2; spark.app.name=ours;")
    assert conf == {"spark.executor.cores": "2", "spark.app.name": "ours"}
    assert build_spark_settings(options(tmp_path, conf=conf))["spark.app.name"] == "ours"


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("spark.authenticate.secret=x", "would show a secret"),
        ("spark.hadoop.fs.s3a.access.key=x", "would show a secret"),
        ("executor.cores=2", "not of the form"),
        ("spark.executor.cores", "not of the form"),
    ],
)
def test_settings_that_spark_must_not_get_are_refused(written: str, why: str) -> None:
    with pytest.raises(SparkUnavailable, match=why):
        parse_conf(written)


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        pytest.param("noetl_worker.__main__", ("pyspark", "py4j", "pandas"), id="worker"),
        # Each task of a job may be a process of its own.
        pytest.param(
            "noetl_worker.spark.tables.store_access", ("boto3", "botocore"), id="executor"
        ),
    ],
)
def test_what_is_not_needed_yet_is_not_loaded(module: str, unwanted: tuple[str, ...]) -> None:
    program = f"import sys, {module}\nprint([name for name in {unwanted} if name in sys.modules])"
    ran = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.defpath},
    )
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr


async def test_a_session_without_spark_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "noetl_worker.spark.driver", None)
    spark_session = SharedSparkSession(options(tmp_path))
    with pytest.raises(SparkUnavailable, match=r"install noetl-worker\[spark\]"):
        await spark_session.run_job(lambda _: None, name="nothing")
