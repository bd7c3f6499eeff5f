"""Queries by Spark alone, in the settings of a worker's session: a request on stdin, seconds on stdout."""

import sys
import time
from pathlib import Path

import msgspec
from tests.support import tpch

from noetl_worker.settings import read_java_environ, set_variables
from noetl_worker.spark import driver
from noetl_worker.spark.session_options import SessionOptions

MASTER = "local[2]"


def main() -> None:
    """Time each query once, in a warm session."""
    request = msgspec.json.decode(sys.stdin.buffer.read())
    options = SessionOptions(
        master=MASTER,
        folder=Path(request["folder"]),
        adopt=set_variables,
        environ=read_java_environ(),
    )
    session = driver.start(options)
    try:
        session.sql("SELECT 1 AS n").collect()
        for table in tpch.TABLES:
            frame = session.read.parquet(f"{request['files']}/{table}.parquet")
            frame.createOrReplaceTempView(table)
        seconds = {}
        for name, text in request["queries"].items():
            began_at = time.perf_counter()
            session.sql(text).toArrow()
            seconds[name] = round(time.perf_counter() - began_at, 2)
    finally:
        driver.stop(session)
    sys.stdout.write(msgspec.json.encode(seconds).decode() + "\n")


if __name__ == "__main__":
    main()
