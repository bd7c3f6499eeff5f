"""Waves on a Spark Connect server, which is another process and may be another machine."""

from pathlib import Path

import pytest
from tests.support import spark_connect, spark_connect_code
from tests.support.spark_connect import BAD, ROWS, SIZE
from tests.support.sparking import SEAL_KEY
from tests.support.wave_bench import executor_environ


@pytest.mark.timeout(400)
def test_frames_of_a_wave_end_on_a_connect_server_as_anywhere(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with spark_connect.connect_server(tmp_path, executor_environ(store)) as master:
        client = spark_connect.run_client(master, store, tmp_path / "client")
    sums = [sum(range(at, at + SIZE)) for at in range(0, ROWS, SIZE)]
    failed = BAD // SIZE
    assert client["errors"] == ["transform" if at == failed else None for at in range(len(sums))]
    assert [item for at, item in enumerate(client["results"]) if at != failed] == [
        item for at, item in enumerate(sums) if at != failed
    ]


@pytest.mark.timeout(400)
def test_code_runs_in_its_own_process_in_the_session_of_a_connect_server(tmp_path: Path) -> None:
    environ = executor_environ(tmp_path) | {"NOETL_WORKER_PAYLOAD_SEAL_KEY": SEAL_KEY}
    with spark_connect.connect_server(tmp_path, environ) as master:
        found = spark_connect_code.run_client(master, tmp_path / "client")
    assert found["problem"] is None
    assert [row["m"] for row in found["made"]["more"]["rows"]] == [3, 4, 5, 6]
    assert (found["made"]["n"], found["made"]["keys"]) == (4, [])
    assert found["wrong"]["details"]["line"] == 2
