"""Batches of rows into a dataset, written and committed by this process."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pyarrow as pa
from msgspec import Struct, structs

from noetl_playbook.model.datasets import DatasetSink
from noetl_worker.datasets import lake_loader
from noetl_worker.datasets.address import DatasetAddress, OpenStore
from noetl_worker.datasets.file_sink import FileSink
from noetl_worker.datasets.file_writer import DatasetWriter
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.sink_report import SinkReport


class SinkPlan(Struct, frozen=True, kw_only=True):
    """A dataset that a task's rows go to, with what opens it: it stays in this process.

    `identity` names the commit, the same in every attempt; no other attempt has this one's
    `attempt`. `catalog` are the arguments of a connection to the catalog of an Iceberg table.
    """

    address: DatasetAddress
    sink: DatasetSink
    identity: str
    attempt: str
    now: datetime
    account: Mapping[str, Any] | None = None
    catalog: Mapping[str, Any] | None = None


def open_sink(plan: SinkPlan) -> Any:
    """Open what prepares and commits a dataset; raises `DatasetProblem`. It blocks."""
    about: dict[str, Any] = {"identity": plan.identity, "attempt": plan.attempt, "now": plan.now}
    if plan.sink.iceberg is not None:
        open_table = lake_loader.load_iceberg().IcebergSink
        return open_table(plan.address, plan.sink, plan.account, **about, catalog=plan.catalog)
    if plan.sink.delta is not None:
        return lake_loader.load_delta().DeltaSink(plan.address, plan.sink, plan.account, **about)
    return FileSink(plan.address, plan.sink, plan.account, **about)


class BatchSink:
    """One task's rows on their way into a dataset; methods block and raise `DatasetProblem`."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._target = open_sink(plan)
        self._writer: DatasetWriter | None = None
        self._schema: pa.Schema | None = None

    def find_earlier(self) -> SinkReport | None:
        """Return what an earlier attempt has committed, else make room for this one."""
        report: SinkReport | None = self._target.find_earlier()
        return report

    @property
    def schema(self) -> pa.Schema | None:
        """Return the columns of the rows, None before the first of them."""
        return self._schema

    def set_schema(self, schema: pa.Schema) -> None:
        """Say which columns the rows have, before the first of them."""
        self._schema = fit_schema(schema)
        self._target.check_schema(self._schema)
        layout = structs.replace(self._plan.sink, partition_by=self._target.partition_by)
        store = OpenStore(self._plan.address, self._plan.account)
        with _translate_arrow_errors(self._plan):
            self._writer = DatasetWriter(store, layout, self._target.write_scope, self._schema)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write some rows."""
        if self._writer is None:
            self.set_schema(batch.schema)
        assert self._writer is not None, "it has just been opened"
        with _translate_arrow_errors(self._plan):
            self._writer.write_batch(batch.cast(self._schema))

    def commit_rows(self) -> SinkReport:
        """Make everything that was written the next state of the dataset."""
        assert self._writer is not None, "the caller has named the columns"
        with _translate_arrow_errors(self._plan):
            files = self._writer.finish_files()
        report: SinkReport = self._target.commit_files(files, self._schema)
        return report


def fit_schema(schema: pa.Schema) -> pa.Schema:
    """Return the types that files hold, and that every engine reads as the same."""
    return pa.schema([pa.field(field.name, _fit_type(field.type)) for field in schema])


def _fit_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _fit_type(kind.storage_type)
    if types.is_dictionary(kind):
        return _fit_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind) or types.is_null(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_fit_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, _fit_type(field.type)) for field in kind])
    return kind


@contextmanager
def _translate_arrow_errors(plan: SinkPlan) -> Iterator[None]:
    """Turn what writers raise for a type that their format does not hold into `DatasetProblem`."""
    try:
        yield
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as problem:
        shown_path = plan.address.shown_path
        text = (
            f"{shown_path} cannot hold these rows as {plan.sink.format}: {problem}: cast the column"
        )
        raise DatasetProblem("schema", text[:600]) from problem
