"""A Spark Connect server out of the wheel, and a program that runs waves on one.

The client is a process of its own (`python -m tests.support.spark_connect MASTER STORE FOLDER`):
what has spoken Connect once does not come back to sessions of the other kind.
"""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyspark
from tests.support.servers import wait_until
from tests.support.services import free_port
from tests.support.spark import HOST, kill, launcher_environ
from tests.support.wave_bench import SUM, executor_environ, frames_of, open_wave_bench, run_all

from noetl_contracts import codec
from noetl_contracts.requests.facts import FrameClosed
from noetl_worker.settings import read_java_environ, set_variables
from noetl_worker.spark.session import open_spark_session
from noetl_worker.spark.session_options import SessionOptions

PATIENCE_S = 120.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
ROWS, SIZE, BAD = 60, 5, 23


@contextmanager
def connect_server(folder: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """A started server, by its address; what `environ` holds, its tasks see."""
    port = free_port()
    conf = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        # As a deployment has to set it: a frame that runs again needs a new attempt.
        "spark.task.maxFailures": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    command = [
        *("/bin/bash", str(Path(pyspark.__file__).parent / "bin/spark-submit")),
        *("--class", SERVER, "--master", "local[2]"),
        *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    log = folder / "connect.log"
    with log.open("wb") as out:
        server = subprocess.Popen(  # noqa: S603 - Spark's own launcher
            command,
            # A server of Spark takes its heap from this, whatever it is told of a driver.
            env={**launcher_environ(folder), "SPARK_DAEMON_MEMORY": "1g", **environ},
            cwd=folder,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )

    def answers() -> bool:
        assert server.poll() is None, log.read_text()[-2000:]
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((HOST, port)) == 0

    try:
        wait_until(answers, timeout_s=PATIENCE_S, what="Spark Connect's server answers")
        yield f"sc://{HOST}:{port}"
    finally:
        kill(
            [*psutil.Process(server.pid).children(recursive=True)] if server.poll() is None else []
        )
        server.kill()
        server.wait()


def run_client(master: str, store: Path, folder: Path) -> dict[str, Any]:
    """Run the client's process; return what its frames came to."""
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", __name__, master, str(store), str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 2,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = codec.decode_json(done.stdout.splitlines()[-1])
    return found


async def main(master: str, store: Path, folder: Path) -> None:
    """Run a wave of frames, of which one fails, and print their results and errors."""
    set_variables(executor_environ(store))
    options = SessionOptions(
        master=master, folder=folder, adopt=set_variables, environ=read_java_environ()
    )
    async with (
        open_spark_session(options) as spark_session,
        open_wave_bench(spark_session, store, poll_s=0.1) as bench,
    ):
        rows = [{"n": -1 if n == BAD else n} for n in range(ROWS)]
        reference = await bench.collection(rows)
        told = await run_all(
            bench, frames_of(SUM, reference, total=ROWS, size=SIZE, frame={"process": "frame"})
        )
    closed = [fact for fact in told if isinstance(fact, FrameClosed)]
    assert len(closed) == len(told), told
    print(  # noqa: T201 - it is the program's answer
        codec.encode_text(
            {
                "results": [
                    None if item.result is None else item.result.context["data"]["results"][0]
                    for item in closed
                ],
                "errors": [None if item.error is None else item.error.kind for item in closed],
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
