"""Request and result of a Spark task, as plain values that need no import of Spark."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
from msgspec import Struct

from noetl_contracts.payloads import PayloadRef
from noetl_playbook.model.datasets import DatasetSink
from noetl_playbook.model.expectations import Expectations
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.sink_report import SinkReport
from noetl_worker.spark.tables.dataset_plans import DatasetTarget, FileInput
from noetl_worker.spark.tables.kept_events import KeptEvents
from noetl_worker.spark.tables.part_writer import PartManifest, WritePlan
from noetl_worker.spark.tables.store_access import StoreAddress
from noetl_worker.spark.tables.stream_plans import StreamPlan, StreamReport, TableTarget

# Settings of Spark that a task may set; the deployment sets all others.
CONF_ALLOWED = (
    "spark.sql.shuffle.partitions",
    "spark.sql.adaptive.",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.ansi.enabled",
    "spark.sql.session.timeZone",
    "spark.sql.caseSensitive",
    "spark.sql.files.maxRecordsPerFile",
    "spark.sql.pyspark.worker.logging.enabled",
)


class RowsInput(Struct, frozen=True, kw_only=True):
    """An input whose rows are in the worker's memory."""

    table: pa.Table


class StoredInput(Struct, frozen=True, kw_only=True):
    """An input in the payload store; rows of a union have the number of their part."""

    refs: list[PayloadRef]
    is_union: bool = False


class QueryInput(Struct, frozen=True, kw_only=True):
    """An input that executors read from PostgreSQL themselves, by a stored credential."""

    options: dict[str, str]


Input = RowsInput | StoredInput | QueryInput | FileInput


class SparkRequest(Struct, frozen=True, kw_only=True):
    """A task, as its thread needs it; either statements or code."""

    inputs: Mapping[str, Input]
    statements: tuple[str, ...]
    code: str | None
    params: dict[str, Any]
    conf: Mapping[str, str]
    plan: WritePlan
    is_trusted: bool
    step: str = ""
    target: DatasetTarget | None = None
    expected: Mapping[str, Expectations] = {}
    now: datetime | None = None
    # Whether the plan of the result is kept with it.
    is_explained: bool = False
    # How the task follows an input that arrives; None for a task that ends with its rows.
    stream: StreamPlan | None = None
    # Takes Spark's events of the task, where they are kept with the run.
    kept_events: KeptEvents | None = None
    # Where batches of a stream go that writes into no dataset.
    table: TableTarget | None = None

    @property
    def sink(self) -> DatasetSink | None:
        """Return how rows are written, None for those that become the task's result."""
        if self.table is not None:
            return self.table.sink
        return None if self.target is None else self.target.sink


class SparkResult(Struct, frozen=True, kw_only=True):
    """What a task gave: a table in parts, rows written to a dataset, or any other value.

    `rejected` are rows that did not fit, by the input that they are of; `checks` are what
    expectations have found, and `diverted` the first rows that they have left out.
    """

    columns: list[str] = []
    types: list[str] = []
    manifests: list[PartManifest] | None = None
    value: Any = None
    written: SinkReport | None = None
    rejected: dict[str, Rejects] = {}
    checks: list[Any] = []
    diverted: dict[str, list[dict[str, Any]]] = {}
    # Tables that code returned by name, beside the value.
    named: "dict[str, SparkResult]" = {}
    # How Spark has planned the table, where that was asked for.
    physical_plan: str = ""
    stream: StreamReport | None = None


class CopyTarget(Struct, frozen=True, kw_only=True):
    """Where rows are copied; `columns` has each one's type and its category in the catalog.

    `target` is the name of the table that errors tell.
    """

    home: StoreAddress
    credential: str
    schema: str
    table: str
    done_table: str
    columns: dict[str, tuple[str, str]]
    target: str


class CopyCounts(Struct, frozen=True, kw_only=True):
    """How many rows were copied, by how many tasks."""

    rows: int
    tasks: int
