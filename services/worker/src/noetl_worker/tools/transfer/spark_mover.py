"""Large transfers: executors read the source and `COPY` into a table beside the target.

What they have copied becomes the target's in one transaction, together with a marker by which a
later attempt finds that it was done.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from msgspec import Struct

from noetl_contracts.commands.state_values import StateType
from noetl_playbook.model import coercion
from noetl_playbook.templates.output_forms import sql_ident
from noetl_worker.domain import cursor_values
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.spark import job_loader
from noetl_worker.spark.task_request import CopyCounts, Input, StoredInput
from noetl_worker.sql import queries
from noetl_worker.tools.calls import references
from noetl_worker.tools.calls.call import Call, CursorScanPort
from noetl_worker.tools.postgres.effects import TransferEffect
from noetl_worker.tools.postgres.postgres_session import PostgresSession
from noetl_worker.tools.postgres.postgres_tool import BROKEN, PostgresTool
from noetl_worker.tools.postgres.row_windows import lease_session
from noetl_worker.tools.postgres.transactions import hold_transaction
from noetl_worker.tools.spark import job_grants
from noetl_worker.tools.spark.grant_maker import GrantNeed
from noetl_worker.tools.spark.spark_tool import SparkTool
from noetl_worker.tools.tables import transfer_rows
from noetl_worker.tools.tables.transfer_rows import TransferAim
from noetl_worker.tools.transfer import staging_tables
from noetl_worker.tools.transfer.dataset_target import DATASET, describe_end
from noetl_worker.tools.transfer.staging_tables import TargetTable
from noetl_worker.tools.transfer.target_table import (
    TargetColumn,
    build_statement,
    empty_table,
    write_staged_rows,
)

ENGINES = ("auto", "io", "spark")
# Results above this are moved by executors; smaller ones are quicker through the worker.
BYTES_MIN = 128 * 1024 * 1024
_QUERIES = queries.load_queries(__package__, "transfer_spark")
_SOURCE_KEYS = frozenset({"type", "tool"})

log = structlog.get_logger(__name__)


class TransferEnds(Struct, frozen=True, kw_only=True):
    """A transfer's two ends, as `transfer` has read them, and their credentials."""

    source: dict[str, Any]
    target: dict[str, Any]
    source_auth: Any
    target_auth: Any
    aim: TransferAim


def is_spark_wanted(engine: Any, ends: TransferEnds) -> bool:
    """Decide who moves the rows; raises `ToolFailure` for an unknown engine."""
    engine_name = "auto" if engine is None else str(engine).lower()
    if engine_name not in ENGINES:
        raise _build_invalid_failure(
            f"engine {engine_name!r:.40} is not known: use {', '.join(ENGINES)}"
        )
    if engine_name != "auto":
        return engine_name == "spark"
    data = ends.source.get("data")
    is_large = (
        ends.source["type"] == "data"
        and isinstance(data, dict)
        and references.is_reference(data)
        and (coercion.coerce_integer(data.get("bytes")) or 0) > BYTES_MIN
    )
    return is_large and ends.target["type"] == "postgres" and ends.target.get("table") is not None


class SparkMover:
    """Moves rows without any of them passing through the worker."""

    def __init__(self, *, spark: SparkTool, postgres: PostgresTool) -> None:
        self._spark = spark
        self._postgres = postgres

    async def move_rows(self, ends: TransferEnds, call: Call) -> dict[str, Any]:
        """Move every row of the source, or none; done twice it is done once."""
        self._check_ends(ends)
        home = self._spark.build_store_address(call)
        credential = await self._spark.input_reader.get_credential_name(
            ends.target_auth, call.site, home
        )
        # The connection that keeps the source's snapshot is held while executors copy, so it is
        # asked for when no other is held, and no other while it is.
        async with lease_session(self._postgres, ends.target_auth, call.site) as session:
            earlier_outcome = await TransferEffect(session.connection, call).find_outcome()
            if earlier_outcome is not None:
                return earlier_outcome
            table = await staging_tables.get_target(session, ends.target.get("table"))
            staging = await staging_tables.create_staging(session, call.idempotency_key, table)
        try:
            columns, copy_counts = await self._copy_rows(ends, call, table, staging, credential)
            return await self._commit_rows(ends, call, table, columns, staging, copy_counts)
        finally:
            await asyncio.shield(self._drop_staging(ends, call, table.schema, staging))

    async def _copy_rows(
        self, ends: TransferEnds, call: Call, table: TargetTable, staging: str, credential: str
    ) -> tuple[list[TargetColumn], CopyCounts]:
        """Have executors copy the source's columns; return which they are."""
        async with (
            self._open_source(ends, call) as source,
            self._spark.hold_home(
                [GrantNeed(credential=credential), *job_grants.list_input_needs(source)], call
            ) as home,
        ):
            frame = await self._spark.run_job(
                lambda session: job_loader.load_jobs().prepared(
                    session, source, ends.aim.mapping, home
                ),
                call,
            )
            transfer_rows.check_columns(frame.columns, table.columns, table.name)
            columns = [table.columns[name] for name in frame.columns]
            # What is wrong with a key or an expression is told before rows are copied.
            build_statement(staging_tables.describe_staged_rows(table, columns, staging), ends.aim)
            plan = staging_tables.build_copy_target(
                table, columns, staging, home=home, credential=credential
            )
            copy_counts: CopyCounts = await self._spark.run_job(
                lambda _: job_loader.load_writes().copy_frame(frame, plan), call
            )
        return columns, copy_counts

    def _check_ends(self, ends: TransferEnds) -> None:
        source, target = ends.source, ends.target
        if target["type"] != "postgres" or target.get("table") is None:
            raise _build_invalid_failure("engine spark writes into a 'table' of type postgres")
        if source.get("expect") is not None:
            raise _build_invalid_failure(
                "engine spark of a transfer makes no checks: leave 'engine' out, or put 'expect' "
                "into a task of kind spark"
            )
        if source["type"] in ("postgres", DATASET):
            return
        if source["type"] != "data" or not references.is_reference(source.get("data")):
            raise _build_invalid_failure(
                "engine spark reads a dataset, a source of type postgres, or of type data with a "
                "result by reference, as in {{ load }}"
            )

    @asynccontextmanager
    async def _open_source(self, ends: TransferEnds, call: Call) -> AsyncIterator[Input]:
        """Say where the rows are; a database is read as it is at one moment."""
        source, home = ends.source, self._spark.build_store_address(call)
        if source["type"] == "data":
            ref = references.find_reference(source["data"], call.site)
            assert ref is not None, "it was checked to be a reference"
            yield StoredInput(refs=[ref])
            return
        if source["type"] == DATASET:
            dataset_fields = describe_end(source, ends.source_auth)
            yield await self._spark.input_reader.describe_files(
                "source", dataset_fields, call, home
            )
            return
        fields = {key: value for key, value in source.items() if key not in _SOURCE_KEYS}
        fields["auth"] = ends.source_auth
        async with lease_session(self._postgres, ends.source_auth, call.site) as session:
            connection = session.connection
            await connection.execute(_QUERIES["begin_snapshot"])
            snapshot = await connection.fetchval(_QUERIES["export_snapshot"])
            yield await self._spark.input_reader.describe_query(
                "source", fields, call.site, home, snapshot=snapshot
            )
            await connection.execute(_QUERIES["end_snapshot"])

    async def _commit_rows(
        self,
        ends: TransferEnds,
        call: Call,
        table: TargetTable,
        columns: list[TargetColumn],
        staging: str,
        copy_counts: CopyCounts,
    ) -> dict[str, Any]:
        """Make the rows the target's, and note that they are."""
        staged_rows = staging_tables.describe_staged_rows(table, columns, staging)
        async with lease_session(self._postgres, ends.target_auth, call.site) as session:
            connection = session.connection
            async with hold_transaction(connection):
                effect = TransferEffect(connection, call)
                if (earlier_outcome := await effect.claim_effect()) is not None:
                    return earlier_outcome
                if ends.aim.mode == "replace":
                    await empty_table(session, table.quoted_name)
                row_count = await write_staged_rows(session, staged_rows, ends.aim)
                outcome: dict[str, Any] = {
                    "rows_transferred": row_count,
                    "chunks": copy_counts.tasks,
                    "records_fetched": copy_counts.rows,
                    "engine": "spark",
                }
                if call.increment is not None:
                    outcome[cursor_values.RESULT_KEY] = await _read_cursor(
                        session, call.increment, ends.aim, columns, [table.schema, staging]
                    )
                await effect.store_outcome(outcome)
            return outcome

    async def _drop_staging(
        self, ends: TransferEnds, call: Call, schema: str, staging: str
    ) -> None:
        try:
            async with lease_session(self._postgres, ends.target_auth, call.site) as session:
                await staging_tables.drop_staging(session, schema, staging)
        except (ToolFailure, *BROKEN) as problem:
            # The next attempt removes them: the outcome of this one is what it was.
            log.warning("tables of a transfer are left", table=staging, reason=str(problem))


async def _read_cursor(
    session: PostgresSession,
    scan: CursorScanPort,
    aim: TransferAim,
    columns: list[TargetColumn],
    staging: list[str],
) -> dict[str, Any]:
    """Find the greatest cursor of what was staged; raises `ToolFailure`."""
    mapping = aim.mapping or {column.name: column.name for column in columns}
    cursor = next((item for item in columns if mapping.get(item.name) == scan.column), None)
    if cursor is None:
        text = (
            f"cursor {scan.column!r} is not among the columns that engine spark moves: move it to "
            "a column of the target, or leave engine out"
        )
        raise _build_invalid_failure(text)
    value = f"source.{sql_ident(cursor.name)}"
    if scan.type is StateType.TEXT:
        value += ' collate "C"'
    query = _QUERIES["read_cursor"].format(value=value, staging=sql_ident(staging))
    row = await session.connection.fetchrow(query)
    assert row is not None, "an aggregate has one row"
    scan.note_reading(row["cursor"], row["rows"])
    return cursor_values.show_reading(scan.reading)


def _build_invalid_failure(text: str) -> ToolFailure:
    return ToolFailure(build_error("validation", text, source="transfer"))
