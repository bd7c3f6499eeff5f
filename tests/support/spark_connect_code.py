"""Runs tasks with code on a Spark Connect server, and prints what they gave.

It is a program of its own (`python -m tests.support.spark_connect_code MASTER FOLDER`): what has
spoken Connect once does not come back to sessions of the other kind.
"""

# ruff: noqa: T201 - its output is what the test reads

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.sparking import spark_bench, spark_call, stored, trusting

from noetl_contracts import codec

PATIENCE_S = 240.0
CODE = """
def main(spark, inputs, params):
    import os
    from pyspark.sql import functions as sf

    @sf.udf("long")
    def plus(number):
        return number + params["add"]

    o = inputs["o"]
    print("in", os.getpid())
    keys = sorted(name for name in os.environ if name.startswith("NOETL_"))
    return {"more": o.select(plus("id").alias("m")).orderBy("m"), "n": o.count(), "keys": keys}
"""
FAILING = "def main(spark, inputs):\n    return spark.table('nowhere').count()\n"


def run_client(master: str, folder: Path) -> dict[str, Any]:
    """Run the program; return what its tasks gave."""
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", __name__, master, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = codec.decode_json(done.stdout.splitlines()[-1])
    return found


async def main(master: str, folder: Path) -> None:
    """Run one task that succeeds and one that fails."""
    async with spark_bench(folder, spark_master=master) as worker:
        trusted = trusting(worker)
        rows = await stored(trusted, [{"id": i} for i in range(4)])
        given = spark_call(code=CODE, inputs={"o": rows}, params={"add": 3})
        made = await trusted.tools.run(given)
        wrong = await trusted.tools.run(spark_call(code=FAILING))
    data = made.data if made.error is None else None
    found = {"made": data, "problem": made.error, "wrong": wrong.error}
    print(codec.encode_text(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
