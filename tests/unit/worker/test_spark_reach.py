"""A cluster that does not answer is an error soon, and one that says what to look at."""

import socket
from pathlib import Path
from threading import Thread

import pytest
from tests.support.services import free_port
from tests.unit.worker.test_spark_settings import options

from noetl_worker.spark.session import SharedSparkSession
from noetl_worker.spark.session_options import (
    SETTING,
    SparkUnavailable,
    SparkUnreachable,
    check_reachable,
    list_addresses,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", []),
        ("local[4]", []),
        ("spark://one:7078", [("one", 7078)]),
        ("spark://one:7077,two:7078", [("one", 7077), ("two", 7078)]),
        ("sc://one", [("one", 15002)]),
        ("sc://one:15003/;token=abc;use_ssl=true", [("one", 15003)]),
        ("sc://[::1]:15002", [("::1", 15002)]),
        ("k8s://https://one", [("one", 443)]),
        ("k8s://one:6443", [("one", 6443)]),
    ],
)
def test_a_master_says_where_it_listens(master: str, expected: list[tuple[str, int]]) -> None:
    assert list_addresses(master) == expected


@pytest.mark.parametrize("master", ["spark://one:port", "sc://one:99999", "ftp://one"])
def test_an_address_that_is_none_is_the_deployments_mistake(master: str) -> None:
    with pytest.raises(SparkUnavailable, match="no usable address"):
        list_addresses(master)


@pytest.mark.parametrize("scheme", ["spark", "sc", "k8s://http"])
async def test_nothing_is_started_for_a_cluster_that_does_not_answer(
    scheme: str, tmp_path: Path
) -> None:
    master = f"{scheme}://127.0.0.1:{free_port()}"
    token = "" if scheme.startswith("k8s") else "/;token=hush"
    spark_session = SharedSparkSession(options(tmp_path, master=f"{master}{token}", reach_s=0.1))
    with pytest.raises(SparkUnreachable, match=SETTING) as found:
        await spark_session.run_job(lambda session: session, name="any")
    assert f"nothing answers at {master} within 0.1 s" in str(found.value)
    assert "hush" not in str(found.value)
    assert not spark_session.is_open


def test_one_of_several_masters_is_enough(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = server.getsockname()[1]
        check_reachable(
            options(tmp_path, master=f"spark://127.0.0.1:{free_port()},127.0.0.1:{answering}")
        )


def test_a_master_that_comes_in_time_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    ended: list[Exception | None] = []

    def look() -> None:
        check_reachable(options(tmp_path, master=f"spark://127.0.0.1:{port}", reach_s=60))
        ended.append(None)

    thread = Thread(target=look)
    thread.start()
    with socket.create_server(("127.0.0.1", port)):
        thread.join(60)
    assert ended == [None]
