"""Waves on a Spark Connect server, which is another process and may be another machine."""

from pathlib import Path

import pytest
from tests.support import spark_connect
from tests.support.spark_connect import BAD, ROWS, SIZE
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
