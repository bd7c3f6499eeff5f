"""Batches of a stream into a table of PostgreSQL, each in one transaction with its marker.

Executors copy a batch into a table beside the target. Its rows become the target's together with a
row of `noetl_effect` that names checkpoint and batch, by which a later attempt finds that it was
written.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog
from msgspec import Struct

from noetl_contracts import codec
from noetl_playbook.model import datasets
from noetl_playbook.model.datasets import DatasetInvalid, DatasetSink
from noetl_worker.datasets.sink_report import SinkReport
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.spark.grants.job_grant import JobGrant
from noetl_worker.spark.tables.store_access import StoreAddress
from noetl_worker.spark.tables.stream_plans import BatchName, TableTarget
from noetl_worker.spark.task_request import CopyCounts, CopyTarget
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.postgres import effects
from noetl_worker.tools.postgres.postgres_session import PostgresSession
from noetl_worker.tools.postgres.postgres_tool import (
    BROKEN,
    PostgresTool,
    classify_postgres_error,
)
from noetl_worker.tools.postgres.row_windows import lease_session
from noetl_worker.tools.postgres.transactions import hold_transaction
from noetl_worker.tools.spark.spark_inputs import SparkInputReader
from noetl_worker.tools.tables import transfer_rows
from noetl_worker.tools.tables.transfer_rows import TransferAim
from noetl_worker.tools.transfer import staging_tables, target_table
from noetl_worker.tools.transfer.staging_tables import TargetTable
from noetl_worker.tools.transfer.target_table import TargetColumn

T = TypeVar("T")

# What a transfer calls the modes of a table.
_AIM_MODES = {"append": "append", "upsert": "upsert", "overwrite": "replace"}
# The longest time that a batch may wait for its database.
_WAIT_S = 6 * 3600.0

log = structlog.get_logger(__name__)


class _StagedBatch(Struct, frozen=True, kw_only=True):
    """Where the rows of a batch wait, and the columns that they have."""

    table: TargetTable
    columns: list[TargetColumn]
    staging: str


class PostgresTables:
    """Opens the tables that streams write into."""

    def __init__(self, *, postgres: PostgresTool, inputs: SparkInputReader) -> None:
        self._postgres = postgres
        self._inputs = inputs

    async def open_table(self, call: Call, home: StoreAddress) -> TableTarget:
        """Open the table that a call's `output` names; raises `ToolFailure`."""
        try:
            sink = datasets.parse_sink(call.fields["sink"])
        except DatasetInvalid as problem:
            error = build_error("validation", f"output: {problem}", source=call.kind)
            raise ToolFailure(error) from problem
        credential = await self._inputs.get_credential_name(sink.auth, call.site, home)
        # A wrong name is reported before a query begins.
        await self._check_table(sink, call)
        writer = BatchTable(
            sink=sink,
            site=call.site,
            postgres=self._postgres,
            home=home,
            credential=credential,
            loop=asyncio.get_running_loop(),
        )
        shown_path = f"table {sink.table} of credential '{credential}'"
        return TableTarget(sink=sink, shown_path=shown_path, writer=writer)

    async def _check_table(self, sink: DatasetSink, call: Call) -> None:
        try:
            async with lease_session(self._postgres, sink.auth, call.site) as session:
                await staging_tables.get_target(session, sink.table)
        except BROKEN as problem:
            raise ToolFailure(classify_postgres_error(problem, None)) from problem


class BatchTable:
    """A table that the batches of one stream are written into."""

    def __init__(
        self,
        *,
        sink: DatasetSink,
        site: UnitScope,
        postgres: PostgresTool,
        home: StoreAddress,
        credential: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._sink = sink
        self._site = site
        self._postgres = postgres
        self._home = home
        self._credential = credential
        self._loop = loop
        self._aim = TransferAim(mode=_AIM_MODES[sink.mode], keys=sink.key)

    @property
    def credential(self) -> str:
        """Name the credential that executors open the table's server with."""
        return self._credential

    def accept_grant(self, grant: JobGrant) -> None:
        """Take what executors may open, before the first batch."""
        self._home = self._home.with_grant(grant)

    def write_batch(
        self,
        batch: BatchName,
        columns: list[str],
        copy_rows: Callable[[CopyTarget], CopyCounts],
    ) -> SinkReport:
        """Write a batch once, from the thread of a stream; raises `ToolFailure`."""
        staged = self._run(lambda session: self._stage_batch(session, batch, columns))
        if isinstance(staged, SinkReport):
            return staged
        try:
            copy_rows(
                staging_tables.build_copy_target(
                    staged.table,
                    staged.columns,
                    staged.staging,
                    home=self._home,
                    credential=self._credential,
                )
            )
            return self._run(lambda session: self._commit_batch(session, batch, staged))
        finally:
            self._remove_staging(staged)

    def _run(self, work: Callable[[PostgresSession], Awaitable[T]]) -> T:
        """Do some work on a connection, which belongs to the event loop; raises `ToolFailure`."""

        async def run_leased() -> T:
            try:
                async with lease_session(self._postgres, self._sink.auth, self._site) as session:
                    return await work(session)
            except BROKEN as problem:
                raise ToolFailure(classify_postgres_error(problem, None)) from problem

        return asyncio.run_coroutine_threadsafe(run_leased(), self._loop).result(_WAIT_S)

    async def _stage_batch(
        self, session: PostgresSession, batch: BatchName, columns: list[str]
    ) -> _StagedBatch | SinkReport:
        """Make room for a batch, or return what an earlier attempt has written of it."""
        connection = session.connection
        await effects.create_markers(connection)
        outcome = await effects.find_outcome(connection, *_build_keys(batch))
        if outcome is not None:
            return self._build_report(batch, outcome, is_repeated=True)
        table = await staging_tables.get_target(session, self._sink.table)
        transfer_rows.check_columns(columns, table.columns, table.name)
        staging = await staging_tables.create_staging(session, _digest_series(batch), table)
        staged = _StagedBatch(
            table=table, columns=[table.columns[name] for name in columns], staging=staging
        )
        # What is wrong with a key is reported before rows are copied.
        target_table.build_statement(_list_rows(staged), self._aim)
        return staged

    async def _commit_batch(
        self, session: PostgresSession, batch: BatchName, staged: _StagedBatch
    ) -> SinkReport:
        """Make the rows the target's, and note that they are."""
        connection, keys = session.connection, _build_keys(batch)
        rows = _list_rows(staged)
        async with hold_transaction(connection):
            if not await effects.write_marker(connection, *keys):
                outcome = await effects.find_outcome(connection, *keys)
                return self._build_report(batch, outcome or {}, is_repeated=True)
            if self._aim.mode == "upsert":
                await target_table.check_keys(session, rows, self._aim)
            if self._aim.mode == "replace":
                await target_table.empty_table(session, staged.table.quoted_name)
            row_count = await target_table.write_staged_rows(session, rows, self._aim)
            outcome = {"rows": row_count}
            await effects.store_outcome(connection, *keys, codec.encode_text(outcome))
        return self._build_report(batch, outcome, is_repeated=False)

    def _remove_staging(self, staged: _StagedBatch) -> None:
        schema, staging = staged.table.schema, staged.staging
        try:
            self._run(lambda session: staging_tables.drop_staging(session, schema, staging))
        except ToolFailure as problem:
            # The next attempt removes them: the outcome of this one is what it was.
            reason = problem.error.message
            log.warning("tables of a stream's batch are left", table=staging, reason=reason)

    def _build_report(
        self, batch: BatchName, outcome: dict[str, Any], *, is_repeated: bool
    ) -> SinkReport:
        return SinkReport(
            path=str(self._sink.table),
            version=batch.number,
            file_count=0,
            row_count=int(outcome.get("rows", 0)),
            size_bytes=0,
            partition_count=0,
            is_repeated=is_repeated,
        )


def _build_keys(batch: BatchName) -> tuple[str, str]:
    """Name a batch in `noetl_effect`."""
    return f"stream/{batch.checkpoint}/{batch.series}", f"batch/{batch.number}"


def _digest_series(batch: BatchName) -> str:
    """Return what the tables of a stream's attempts begin with."""
    return codec.digest_hex(_build_keys(batch)[0].encode()).removeprefix("sha256:")


def _list_rows(staged: _StagedBatch) -> target_table.StagedRows:
    return staging_tables.describe_staged_rows(staged.table, staged.columns, staged.staging)
