"""Spreads bytes over the executors: one row of a small table is one partition's work.

Loaded when Spark is, by `noetl_worker.spark.session` alone.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

Entry = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# What a cluster that does not say is taken to run at once.
_PARALLELISM = 8


def parallelism(session: SparkSession) -> int:
    """Return how many tasks the session's executors run at once."""
    if "connect" in type(session).__module__:
        return int(session.conf.get("spark.default.parallelism", None) or _PARALLELISM)
    return int(session.sparkContext.defaultParallelism)


def spread(session: SparkSession, shares: list[bytes], entry: Entry) -> list[bytes]:
    """Hand one share to each partition; return all that `entry` yields as `found`."""
    batches = [pa.RecordBatch.from_pydict({"share": pa.array([one])}) for one in shares]
    # In the driver's own process a batch is a partition; a server elsewhere has to be told.
    frame = session.createDataFrame(pa.Table.from_batches(batches))
    if "connect" in type(session).__module__:
        frame = frame.repartition(len(shares))
    found = frame.mapInArrow(entry, "found binary").toArrow()
    return [bytes(one) for one in found["found"].to_pylist()]
