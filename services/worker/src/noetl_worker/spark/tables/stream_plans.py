"""What a stream is asked to do and what it has done, as plain values without Spark."""

import threading

from msgspec import Struct

from noetl_contracts.commands.task_metrics import StreamProgress
from noetl_contracts.ids import ExecutionId
from noetl_playbook.model.datasets import DatasetSource
from noetl_playbook.model.streams import StreamOptions
from noetl_worker.datasets.address import DatasetAddress
from noetl_worker.datasets.read_plan import ReadPlan
from noetl_worker.spark.tables.store_access import StoreAddress


class SourceColumns(Struct, frozen=True, kw_only=True):
    """The format and the columns that a stream reads; `described` is the digest of its input.

    A stream keeps them for as long as its input is described in the same way: files that arrive
    later do not change what was inferred from the first ones.
    """

    described: str
    format: str
    schema: str


class StreamInput(Struct, frozen=True, kw_only=True):
    """The input that arrives: its `plan` has the columns, and no file.

    `arrivals` is the prefix of the objects that list the files of each batch. `rejects` is the
    name under which executors tell of rows that do not fit.
    """

    home: StoreAddress
    plan: ReadPlan
    arrivals: str
    rejects: str
    tasks: int = 8
    files_per_batch: int = 1000


class StreamTotals(Struct, frozen=True, kw_only=True):
    """What batches of one execution have done, over all its attempts."""

    execution_id: ExecutionId
    batches: int = 0
    files: int = 0
    rows: int = 0


class StreamPlan(Struct, frozen=True, kw_only=True):
    """How a task streams; `name` is that of the input that arrives, and `source` describes it.

    Rows that do not fit are told under `rejects`.
    """

    options: StreamOptions
    name: str
    home: StoreAddress
    address: DatasetAddress
    source: DatasetSource
    rejects: str
    execution_id: ExecutionId
    # Whether executors share the folders of this machine.
    is_near: bool


class StreamReport(Struct, frozen=True, kw_only=True):
    """What a stream has done when it ended; `last_batch` is None when there was none."""

    totals: StreamTotals
    last_batch: int | None
    ended_by: str


class StreamWatch:
    """What the thread of a stream and the event loop tell one another."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        # The latest figures of the query, None before its first batch.
        self.progress: StreamProgress | None = None

    @property
    def is_stopped(self) -> bool:
        """Tell whether the stream is to end at once."""
        return self._stop.is_set()

    def stop_stream(self) -> None:
        """Let the stream end at once; what its batch has not written is written by the next run."""
        self._stop.set()
