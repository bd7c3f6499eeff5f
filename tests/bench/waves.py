"""Frames of one size in the io lane and in Spark's waves; `tests.bench.spark_lanes` has every size and body."""

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from tests.bench import spark_lanes

ROWS = 1_000
ROUNDS = 5


def measure() -> dict[str, Any]:
    """Run frames of a sum in Python in both lanes."""
    arguments = argparse.Namespace(rounds=ROUNDS, sizes=[ROWS], bodies=["Python, a sum"])
    with tempfile.TemporaryDirectory(prefix="noetl-lanes-") as folder:
        (found,) = asyncio.run(spark_lanes.measure(Path(folder), arguments))
    return {"frames": spark_lanes.FRAMES, **found}
