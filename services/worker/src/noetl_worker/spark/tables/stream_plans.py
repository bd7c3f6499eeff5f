"""What a stream is asked to do and what it has done, as plain values without Spark."""

import threading
from typing import Any, Protocol

from msgspec import Struct

from noetl_contracts.commands.task_metrics import StreamProgress
from noetl_contracts.ids import ExecutionId
from noetl_playbook.model.datasets import DatasetSink, DatasetSource
from noetl_playbook.model.streams import StreamOptions
from noetl_worker.datasets.address import DatasetAddress
from noetl_worker.datasets.read_plan import ReadPlan
from noetl_worker.datasets.sink_report import SinkReport
from noetl_worker.spark.grants.job_grant import JobGrant
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


class BatchName(Struct, frozen=True, kw_only=True):
    """A batch as no other one is named: another stream of the `checkpoint` has another `series`."""

    checkpoint: str
    series: str
    number: int


class TableWriter(Protocol):
    """Writes batches into a table of PostgreSQL, each once; methods block."""

    @property
    def credential(self) -> str:
        """Name the credential that executors open the table's server with."""

    def accept_grant(self, grant: JobGrant) -> None:
        """Take what executors may open, before the first batch."""

    def write_batch(self, batch: BatchName, columns: list[str], copy_rows: Any) -> SinkReport:
        """Write a batch's rows, which `copy_rows` copies to a `CopyTarget`.

        What an earlier attempt has written is not copied again. Raises `ToolFailure`, and what
        `copy_rows` raises.
        """


class TableTarget(Struct, frozen=True, kw_only=True):
    """A table that the batches of a stream go to; `shown_path` is how errors name it."""

    sink: DatasetSink
    shown_path: str
    writer: TableWriter


class StreamReport(Struct, frozen=True, kw_only=True):
    """What a stream has done when it ended; `last_batch` is None when there was none.

    `late_rows` are those, or partial sums of them, that this attempt left out by the watermark.
    """

    totals: StreamTotals
    last_batch: int | None
    ended_by: str
    late_rows: int = 0


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
