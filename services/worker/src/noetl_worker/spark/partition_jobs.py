"""Runs shares on executors, of a wave or an audit: each is an encoded byte string, one partition.

Loaded when Spark is.
"""

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from noetl_worker.spark.grants import launch_environ

Entry = Callable[[Iterable[bytes]], Iterable[bytes]]

# What a cluster that does not say is taken to run at once.
_PARALLELISM = 8


def parallelism(session: SparkSession) -> int:
    """Return how many tasks the session's executors run at once."""
    if _is_connect(session):
        return int(session.conf.get("spark.default.parallelism", None) or _PARALLELISM)
    return int(session.sparkContext.defaultParallelism)


def spread(session: SparkSession, shares: list[bytes], entry: Entry) -> list[bytes]:
    """Hand one share to each partition; return all that `entry` yields.

    Where the driver is at hand no query is made of it: planning one takes longer than many frames.
    """
    if _is_connect(session):
        return _spread_as_table(session, shares, entry)
    context = session.sparkContext
    partitions = context.parallelize(shares, len(shares))
    partitions.ctx = _build_lane_context(context)
    return [bytes(item) for item in partitions.mapPartitions(entry).collect()]


def _build_lane_context(context: SparkContext) -> SparkContext:
    """Return the context as functions see it whose Python processes run nothing but waves.

    Spark gives a Python process only to functions with the same variables. Frames open all that
    their worker may, and leave it open for the next; code of other tasks is not let in.
    """
    lane_context = object.__new__(SparkContext)
    lane_context.__dict__.update(context.__dict__)
    lane_context.environment = {**context.environment, launch_environ.LANE: "waves"}
    return lane_context


def _spread_as_table(session: SparkSession, shares: list[bytes], entry: Entry) -> list[bytes]:
    """Do the same through a table of one column, the only way into a server elsewhere."""
    batches = [pa.RecordBatch.from_pydict({"share": pa.array([share])}) for share in shares]
    # A server elsewhere does not make a partition of each batch unless it is told.
    frame = session.createDataFrame(pa.Table.from_batches(batches)).repartition(len(shares))
    table = frame.mapInArrow(_TableEntry(entry), "found binary").toArrow()
    return [bytes(item) for item in table["found"].to_pylist()]


class _TableEntry:
    """An entry that takes and gives Arrow batches of one column; executors import it by name."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the entry over the values of all batches."""
        shares = (bytes(item) for batch in batches for item in batch.column(0).to_pylist())
        for answer in self._entry(shares):
            yield pa.RecordBatch.from_arrays([pa.array([answer], pa.binary())], names=["found"])


def _is_connect(session: SparkSession) -> bool:
    return "connect" in type(session).__module__
