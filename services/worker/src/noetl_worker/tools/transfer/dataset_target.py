"""Datasets as ends of a transfer; in a target all of the rows are there at once, or none."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any

import pyarrow as pa

from noetl_chassis.blocking_work import (
    StopSign,
    run_in_thread,
    run_interruptibly,
    run_until_stopped,
)
from noetl_contracts import codec
from noetl_playbook.model import datasets
from noetl_storage.arrow import row_tables
from noetl_storage.arrow.table_schema import Kinds
from noetl_worker.datasets.batch_sink import BatchSink, SinkPlan
from noetl_worker.datasets.sink_report import SinkReport
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.sql import sql_statements
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.calls.call_datasets import CallDatasets
from noetl_worker.tools.duckdb.duckdb_session import DuckdbSession
from noetl_worker.tools.duckdb.duckdb_tool import SessionThread
from noetl_worker.tools.postgres import query_batches
from noetl_worker.tools.tables import chunk_types, dataset_results, transfer_rows
from noetl_worker.tools.tables.row_checks import Checks, CheckScope, NoChecks, open_checks
from noetl_worker.tools.tables.transfer_rows import RowWindow
from noetl_worker.tools.transfer.dataset_source import SourceDataset, map_batch, map_schema

# The type of an end that is a dataset, where it says one.
DATASET = "dataset"
_BATCH_ROWS = 64 * 1024
_OWN_KEYS = frozenset({"type", "tool", "mapping", "credential"})


class TargetDataset:
    """Takes the rows of one source; every method raises `ToolFailure`."""

    def __init__(self, plan: SinkPlan, call: Call, mapping: Mapping[str, str] | None) -> None:
        self._plan = plan
        self._call = call
        self._mapping = mapping
        self._checks: Checks = NoChecks()
        self._source: SourceDataset | None = None

    @asynccontextmanager
    async def hold_checks(self) -> AsyncIterator[None]:
        """Hold what checks the rows need while the block runs."""
        scope = CheckScope(dataset="target", now=self._plan.now)
        with ExitStack() as stack, self._translate_problems():
            opening = open_checks(self._plan.sink.expect, scope)
            self._checks = await run_in_thread(stack.enter_context, opening)
            try:
                yield
            finally:
                await run_in_thread(stack.close)

    async def find_earlier(self) -> dict[str, Any] | None:
        """Return the outcome of an attempt that has committed."""
        with self._translate_problems():
            self._sink = await run_in_thread(BatchSink, self._plan)
            earlier = await run_in_thread(self._sink.find_earlier)
        return None if earlier is None else _build_report(earlier)

    async def fill_from_dataset(self, source: SourceDataset) -> dict[str, Any]:
        """Write the rows of another dataset."""

        def copy_rows(sign: StopSign) -> dict[str, Any]:
            with sign.interrupt_by(source.stop_checks), sign.interrupt_by(self._checks.stop):
                return self._fill(source.schema, sign.iterate_until(source.iterate_blocking()))

        self._source = source
        return source.add_reading(await run_until_stopped(copy_rows))

    async def fill_from_postgres(
        self, source: Mapping[str, Any], credential: Credential
    ) -> dict[str, Any]:
        """Write the rows of a query, which a connection of its own reads."""
        request = query_batches.parse_request(source, name="source")

        def copy_rows(sign: StopSign) -> dict[str, Any]:
            with (
                sign.interrupt_by(self._checks.stop),
                query_batches.open_query(credential, request, sign) as rows,
            ):
                return self._fill(rows.schema, rows.batches)

        return await run_until_stopped(copy_rows)

    async def fill_from_duckdb(
        self, source: Mapping[str, Any], query: str, lease: SessionThread
    ) -> dict[str, Any]:
        """Write the rows of the last statement of a query."""
        params = source.get("params")
        statements = sql_statements.cut_statements(
            query, sql_statements.get_placeholder_style(params), "duckdb"
        )
        planned_statements = [
            (item, sql_statements.order_arguments(item, params)) for item in statements
        ]
        if not planned_statements:
            raise _build_refusal("source.query holds no statement")

        def copy_rows(session: DuckdbSession) -> dict[str, Any]:
            *earlier, (last, values) = planned_statements
            for statement, arguments in earlier:
                session.fetch_rows(statement.text, arguments)
            scan = session.scan_query(last.text, values, size=_BATCH_ROWS)
            if scan is None:
                raise _build_refusal("source.query ends with a statement that gives no rows")
            with session.hold_stop(self._checks.stop):
                return self._fill(scan.schema, scan.batches)

        return await lease.run_work(copy_rows)

    async def fill_from_windows(
        self, windows: AsyncGenerator[RowWindow, None], aim: transfer_rows.TransferAim
    ) -> dict[str, Any]:
        """Write rows that come as values; later ones have the types of the first chunk."""
        count = chunks = 0
        async with aclosing(windows):
            async for window in windows:
                if not window.rows:
                    continue
                mapped_window = transfer_rows.map_window(window, aim)
                with self._translate_problems():
                    await run_interruptibly(
                        self._checks.stop,
                        self._write_rows,
                        mapped_window.rows,
                        mapped_window.kinds,
                    )
                count += len(window.rows)
                chunks += 1
        if self._sink.schema is None:
            raise _build_refusal("the source has no rows, so that nobody knows their columns")
        with self._translate_problems():
            return await run_interruptibly(self._checks.stop, self._commit_rows, chunks, count)

    def _fill(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
        """Write batches, and commit them; it blocks."""
        mapped_schema = map_schema(schema, self._mapping)
        if mapped_schema is None:
            raise _build_refusal(
                "a mapping into a dataset names columns of the source: take values out of others "
                "in a query, or in a task of kind duckdb or spark"
            )
        count = chunks = 0
        with self._translate_problems():
            self._sink.set_schema(mapped_schema)
            self._checks.check_columns(mapped_schema)
        for batch in batches:
            with self._translate_problems():
                row_batch = map_batch(batch, mapped_schema, self._mapping)
                self._sink.write_batch(self._checks.filter_batch(row_batch))
            count += batch.num_rows
            chunks += 1
        with self._translate_problems():
            return self._commit_rows(chunks, count)

    def _commit_rows(self, chunks: int, rows_read: int) -> dict[str, Any]:
        """Commit the rows when nothing that must hold is broken."""
        findings = {} if self._source is None else {"source": self._source.findings}
        findings["target"] = self._checks.finish()
        return {
            **_build_report(self._sink.commit_rows()),
            "chunks": chunks,
            "records_fetched": rows_read,
            **dataset_results.show_findings(findings),
        }

    def _write_rows(self, rows: list[dict[str, Any]], kinds: Kinds) -> None:
        schema = self._sink.schema
        table = (
            row_tables.build_table(rows, None, kinds)
            if schema is None
            else chunk_types.build_later_chunk(
                rows, kinds, schema, advice="use a larger chunk_size"
            )
        )
        if schema is None:
            self._sink.set_schema(table.schema)
            self._checks.check_columns(table.schema)
        for batch in table.combine_chunks().to_batches():
            self._sink.write_batch(self._checks.filter_batch(batch))

    def _translate_problems(self) -> Any:
        return dataset_results.translate_problems(self._call, "target")


def _build_report(report: SinkReport) -> dict[str, Any]:
    """Say what a commit has written."""
    count = report.row_count
    return {
        "rows_transferred": count,
        "chunks": 0,
        "records_fetched": count,
        "written": codec.to_builtins(report),
    }


def _build_refusal(text: str) -> ToolFailure:
    return ToolFailure(build_error("validation", text, source="transfer"))


def describe_end(end: Mapping[str, Any], auth: Any) -> dict[str, Any]:
    """Return what an end says of its dataset, without what it says of the transfer."""
    fields = {key: value for key, value in end.items() if key not in _OWN_KEYS}
    if isinstance(end.get("path"), str) and datasets.is_web_path(end["path"]):
        # A server is shown no credential of the database at the other end.
        own_auth = end.get("auth") or end.get("credential")
        return fields if own_auth is None else {**fields, "auth": own_auth}
    if auth is not None and any(
        isinstance(end.get(place), str) and datasets.is_bucket_path(end[place])
        for place in datasets.PLACES
    ):
        fields["auth"] = auth
    return fields


class DatasetEnds:
    """Opens the datasets of a transfer."""

    def __init__(self, datasets_: CallDatasets) -> None:
        self._datasets = datasets_

    async def open_source(self, end: Mapping[str, Any], auth: Any, call: Call) -> SourceDataset:
        """Find the files of a source; raises `ToolFailure`."""
        dataset_fields = describe_end(end, auth)
        planned = await self._datasets.plan_source(dataset_fields, call, field="source")
        return SourceDataset(planned, call, self._datasets.get_now())

    async def open_target(
        self,
        end: Mapping[str, Any],
        auth: Any,
        call: Call,
        *,
        mapping: Mapping[str, str] | None,
    ) -> TargetDataset:
        """Describe a target; raises `ToolFailure`."""
        dataset_fields = describe_end(end, auth)
        plan = await self._datasets.describe_sink(dataset_fields, call, field="target")
        return TargetDataset(plan, call, mapping)
