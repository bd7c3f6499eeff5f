"""Lineage on PostgreSQL: the events that it is told from, and the run events that are kept."""

from collections.abc import Sequence

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.envelope import Envelope
from noetl_storage.ports.history_ports import LineageBehind, LineageRow, UndeliveredRow
from noetl_storage.postgres import event_rows, queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("lineage")


class PostgresLineageHistories:
    """Leaves the choice of events to the database: most of a long history never travels."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_steps(
        self, execution_id: ExecutionId, *, after_version: int, until_version: int
    ) -> list[Envelope]:
        """Return the events of a range of versions that runs and steps begin, end or result in."""
        rows = await self._database.fetch_rows(
            _QUERIES["read_steps"], int(execution_id), after_version, until_version
        )
        return [event_rows.build_envelope(record) for record in rows]


class PostgresLineage:
    """Writes rows and position together; positions are compared and swapped."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_lineage_behind(
        self, *, shard: int, shard_count: int, lineage_version: int, executions_max: int
    ) -> list[LineageBehind]:
        """Return executions whose lineage is behind the ledger, or of an older release."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_behind"], shard, shard_count, lineage_version, executions_max
        )
        return [
            LineageBehind(
                execution_id=ExecutionId(str(record["execution_id"])),
                tenant_id=TenantId(record["tenant_id"]),
                organization_id=OrganizationId(record["organization_id"]),
                head=record["head"],
                kept_version=record["kept"],
                state=record["state"],
            )
            for record in rows
        ]

    async def keep_rows(
        self,
        behind: LineageBehind,
        rows: Sequence[LineageRow],
        *,
        until: int,
        state: bytes,
        lineage_version: int,
    ) -> bool:
        """Write rows and move the position in one transaction; False when it stands elsewhere."""
        key = int(behind.execution_id)
        versions, ordinals = [row.version for row in rows], [row.ordinal for row in rows]
        async with self._database.open_transaction() as transaction:
            moved_rows = await transaction.fetch_rows(
                _QUERIES["move"], key, behind.kept_version, until, lineage_version, state
            )
            if not moved_rows:
                return False
            await transaction.execute_statement(
                _QUERIES["remove_others"], key, behind.kept_version, until, versions, ordinals
            )
            await transaction.execute_statement(
                _QUERIES["keep"],
                key,
                behind.tenant_id,
                behind.organization_id,
                versions,
                ordinals,
                [row.event_type for row in rows],
                [row.event_time for row in rows],
                [row.run_id for row in rows],
                [row.job for row in rows],
                [row.body for row in rows],
            )
        return True

    async def list_undelivered_rows(
        self, *, shard: int, shard_count: int, rows_max: int
    ) -> list[UndeliveredRow]:
        """Return rows of a shard to deliver, in order within each execution."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_undelivered"], shard, shard_count, rows_max
        )
        return [
            UndeliveredRow(
                execution_id=ExecutionId(str(record["execution_id"])),
                version=record["version"],
                ordinal=record["ordinal"],
                body=record["body"],
            )
            for record in rows
        ]

    async def settle_row(self, row: UndeliveredRow, *, refusal: str | None = None) -> None:
        """Note that a row was delivered, or why its receiver will never take it."""
        await self._database.execute_statement(
            _QUERIES["settle"], int(row.execution_id), row.version, row.ordinal, refusal
        )

    async def forget_lineage(self, execution_id: ExecutionId) -> bool:
        """Forget an execution's lineage, so that it is derived again; False when it has none."""
        return bool(await self._database.fetch_rows(_QUERIES["forget"], int(execution_id)))
