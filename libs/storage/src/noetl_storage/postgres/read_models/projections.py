"""The read models on PostgreSQL."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg

from noetl_contracts import codec
from noetl_contracts.commands.worker_pools import LANES
from noetl_contracts.ids import CommandId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import (
    FrameBin,
    FrameBins,
    IssuedCommand,
    LeasedCommand,
    LiveCommandCount,
    OpenWait,
    OverdueCommand,
    StoredLineageLink,
)
from noetl_storage.ledger.surfaces import (
    KEY_BY_SURFACE,
    OPTIONAL_COLUMNS,
    list_latest_rows,
    read_issued_command,
    read_leased_command,
    read_open_waits,
)
from noetl_storage.postgres import event_rows, queries
from noetl_storage.postgres.database import Database
from noetl_storage.postgres.read_models import result_refs

_QUERIES = queries.load_queries("projections")
# Before every ledger.
_EVER = datetime(1970, 1, 1, tzinfo=UTC)
_SURFACES = "/* surfaces */\n"
_SURFACES_FROM = 5
_MOVED = "(select array_agg(m.execution_id) from moved as m)::"


class PostgresProjections:
    """Writes rows and positions together; positions are compared and swapped."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_positions(self, execution_ids: Sequence[ExecutionId]) -> dict[str, int]:
        """Return the version up to which each execution is projected; absent means 0."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_positions"], [int(execution) for execution in execution_ids]
        )
        return {str(record["execution_id"]): record["version"] for record in rows}

    async def apply_rows(
        self,
        *,
        shard: int,
        rows: Mapping[str, Sequence[Mapping[str, Any]]],
        positions: Mapping[str, tuple[int, int]],
        results: Sequence[Mapping[str, Any]] = (),
    ) -> list[str]:
        """Write rows by surface and results, and move positions (from, to), in one statement."""
        if not positions:
            return []
        ordered = sorted((int(execution), *move) for execution, move in positions.items())
        rows_by_surface = list_latest_rows(rows, of=positions.keys())
        moved_rows = await self._database.fetch_rows(
            _APPLY,
            shard,
            *([item[place] for item in ordered] for place in range(3)),
            *(_to_storable(rows_by_surface[surface]) for surface in KEY_BY_SURFACE),
            list(results),
        )
        moved_executions = {str(record["execution_id"]) for record in moved_rows}
        return [execution for execution in positions if execution not in moved_executions]

    async def list_executions_behind(
        self,
        *,
        shard: int,
        shard_count: int,
        older_than_s: float,
        executions_max: int,
        since: datetime | None = None,
    ) -> list[ExecutionId]:
        """Return executions of a shard whose ledger is ahead of the projection for too long."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_behind"],
            shard,
            shard_count,
            older_than_s,
            executions_max,
            since or _EVER,
        )
        return [ExecutionId(str(record["execution_id"])) for record in rows]

    async def list_rows(
        self,
        surface: str,
        execution_id: ExecutionId,
        *,
        after: str | None = None,
        rows_max: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the rows of one surface for one execution after a key, in key order."""
        # Keys are numbers above zero, or texts that are not empty.
        key: str | int = after or ""
        if surface != "business_object":
            key = int(after or 0)
        rows = await self._database.fetch_rows(
            _QUERIES[f"list_{_check_surface(surface)}"], int(execution_id), key, rows_max
        )
        return [record_to_row(record) for record in rows]

    async def list_frames(
        self,
        execution_id: ExecutionId,
        *,
        stage_id: str | None,
        status: str | None,
        offset: int,
        frames_max: int,
    ) -> tuple[list[dict[str, Any]], int]:
        """Return a window of an execution's frames in key order, and how many there are."""
        frame_filter = (int(execution_id), None if stage_id is None else int(stage_id), status)
        total = await self._database.get_value(_QUERIES["count_frames"], *frame_filter)
        rows = await self._database.fetch_rows(
            _QUERIES["list_frames"], *frame_filter, offset, frames_max
        )
        return [record_to_row(record) for record in rows], total

    async def bin_frames(self, execution_id: ExecutionId, *, bins_max: int) -> FrameBins:
        """Share out the frames of each stage over at most so many bins."""
        found = FrameBins(bins=[], stages=[])
        for record in await self._database.fetch_rows(
            _QUERIES["bin_frames"], int(execution_id), bins_max
        ):
            kept = found.stages if record["is_whole"] else found.bins
            kept.append(codec.convert_value(record_to_row(record), FrameBin))
        return found

    async def clear_execution(self, execution_id: ExecutionId) -> None:
        """Forget one execution's rows and position, to be projected again."""
        async with self._database.open_transaction() as transaction:
            await transaction.execute_statement(_QUERIES["clear_position"], int(execution_id))
            for surface in KEY_BY_SURFACE:
                await transaction.execute_statement(_QUERIES[f"clear_{surface}"], int(execution_id))
            await result_refs.replace_results(transaction, execution_id, ())

    async def replace_rows(
        self,
        *,
        shard: int,
        execution_id: ExecutionId,
        rows: Mapping[str, Sequence[Mapping[str, Any]]],
        version: int,
        results: Sequence[Mapping[str, Any]] = (),
    ) -> int:
        """Replace all of one execution's rows and its position, unless it is further already."""
        async with self._database.open_transaction() as transaction:
            position_rows = await transaction.fetch_rows(
                _QUERIES["hold_position"], int(execution_id), shard
            )
            stored_version: int = position_rows[0]["version"]
            if stored_version > version:
                return stored_version
            for surface, latest_rows in list_latest_rows(rows, of={execution_id}).items():
                await transaction.execute_statement(_QUERIES[f"clear_{surface}"], int(execution_id))
                if latest_rows:
                    upsert = _QUERIES[f"upsert_{surface}"]
                    await transaction.execute_statement(
                        upsert, _to_storable(latest_rows), [int(execution_id)]
                    )
            await result_refs.replace_results(transaction, execution_id, results)
            await transaction.execute_statement(
                _QUERIES["set_position"], int(execution_id), shard, version
            )
        return version

    async def list_results(self, execution_id: ExecutionId) -> list[dict[str, Any]]:
        """Return an execution's stored results as they were written, in the order of their ids."""
        return [
            record_to_row(record)
            for record in await result_refs.list_result_records(self._database, execution_id)
        ]

    async def trace_results(
        self, execution_id: ExecutionId, step: str, *, links_max: int
    ) -> list[StoredLineageLink]:
        """Return the latest stored result of a step, the one that led to it, and so on, back."""
        return await result_refs.trace_results(
            self._database, execution_id, step, links_max=links_max
        )

    async def list_executions_ahead(self, *, executions_max: int) -> list[ExecutionId]:
        """Return executions whose projection is ahead of the ledger, which cannot be."""
        rows = await self._database.fetch_rows(_QUERIES["list_ahead"], executions_max)
        return [ExecutionId(str(record["execution_id"])) for record in rows]

    async def list_executions(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        status: str | None,
        path: str | None,
        before: ExecutionId | None,
        since: datetime | None = None,
        executions_max: int,
    ) -> list[dict[str, Any]]:
        """Return executions, newest first; `since` leaves out those that began before it."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_executions"],
            tenant_id,
            organization_id,
            status,
            path,
            None if before is None else int(before),
            executions_max,
            since,
        )
        return [record_to_row(record) for record in rows]

    async def list_overdue(self, *, grace_s: float, commands_max: int) -> list[OverdueCommand]:
        """Return live commands of which nothing was heard for `grace_s`, the longest silent first.

        At most `commands_max` that wait and as many that run in each place: a tenant's part of a
        lane of a pool.
        """
        rows = await self._database.fetch_rows(_QUERIES["list_overdue"], grace_s, commands_max)
        return [
            OverdueCommand(
                execution_id=ExecutionId(str(record["execution_id"])),
                tenant_id=TenantId(record["tenant_id"]),
                organization_id=OrganizationId(record["organization_id"]),
                command_id=str(record["command_id"]),
                attempt=record["attempts"],
                status=record["status"],
                pool=record["pool"],
                lane=record["lane"],
            )
            for record in rows
        ]

    async def count_live_commands(self) -> list[LiveCommandCount]:
        """Count live executions' commands that wait or run, by tenant, organization and stage."""
        rows = await self._database.fetch_rows(_QUERIES["count_live_commands"])
        return [
            LiveCommandCount(
                tenant_id=TenantId(record["tenant_id"]),
                organization_id=OrganizationId(record["organization_id"]),
                stage_kind=record["stage_kind"],
                status=record["status"],
                commands=record["commands"],
            )
            for record in rows
        ]

    async def list_commands(
        self, execution_id: ExecutionId, command_ids: Sequence[CommandId]
    ) -> list[dict[str, Any]]:
        """Return the rows of these commands of an execution that are there, in any order."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_commands"],
            int(execution_id),
            [int(command_id) for command_id in command_ids],
        )
        return [record_to_row(record) for record in rows]

    async def find_frame(self, execution_id: ExecutionId, frame_id: str) -> dict[str, Any] | None:
        """Return the row of one frame, or None: a late commit over HTTP says what ended it."""
        rows = await self._database.fetch_rows(
            _QUERIES["find_frame"], int(execution_id), int(frame_id)
        )
        return record_to_row(rows[0]) if rows else None

    async def list_issued(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        execution_id: ExecutionId | None = None,
        stage_id: str | None = None,
        commands_max: int,
    ) -> list[IssuedCommand]:
        """Return commands that nobody has begun, the longest waiting first."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_issued"],
            tenant_id,
            organization_id,
            None if execution_id is None else int(execution_id),
            None if stage_id is None else int(stage_id),
            commands_max,
        )
        return [read_issued_command(record_to_row(record)) for record in rows]

    async def list_urgent(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        pools: Sequence[str],
        commands_max: int,
    ) -> list[IssuedCommand]:
        """Return commands of pools that nobody has begun, by lane and how long they wait."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_urgent"], tenant_id, organization_id, pools, LANES, commands_max
        )
        return [read_issued_command(record_to_row(record)) for record in rows]

    async def list_leased(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        worker_id: str | None = None,
        execution_id: ExecutionId | None = None,
        commands_max: int,
    ) -> list[LeasedCommand]:
        """Return commands that workers run, the longest running first."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_leased"],
            tenant_id,
            organization_id,
            worker_id,
            None if execution_id is None else int(execution_id),
            commands_max,
        )
        return [read_leased_command(record_to_row(record)) for record in rows]

    async def list_waits(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        address: str | None = None,
        mode: str | None = None,
        execution_id: ExecutionId | None = None,
        waits_max: int,
    ) -> list[OpenWait]:
        """Return commands that wait for a message, the longest waiting first."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_waits"],
            tenant_id,
            organization_id,
            address,
            mode,
            None if execution_id is None else int(execution_id),
            waits_max,
        )
        return read_open_waits(dict(row) for row in rows)

    async def list_stalled(
        self, *, older_than_s: float, executions_max: int
    ) -> list[dict[str, Any]]:
        """Return running executions without any event for too long."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_stalled"], older_than_s, executions_max
        )
        return [record_to_row(record) for record in rows]

    async def list_overdue_waits(self, *, over_s: float, waits_max: int) -> list[dict[str, Any]]:
        """Return waits whose time has been over for so long, those that began first."""
        rows = await self._database.fetch_rows(_QUERIES["list_overdue_waits"], over_s, waits_max)
        return [record_to_row(record) for record in rows]


def _build_apply_query() -> str:
    """Put the statements that write each surface and the results into the one that moves positions.

    What those take as $1 and $2 are here the surface's own parameter and the executions that moved.
    """
    parts = []
    statements = {surface: _QUERIES[f"upsert_{surface}"] for surface in KEY_BY_SURFACE}
    statements["result_ref"] = result_refs.WRITE
    for place, (surface, statement) in enumerate(statements.items(), start=_SURFACES_FROM):
        surface_statement = statement.removesuffix(";")
        for parameter, replacement in (("$1::", f"${place}::"), ("$2::", _MOVED)):
            assert surface_statement.count(parameter) == 1, surface
            surface_statement = surface_statement.replace(parameter, replacement)
        parts.append(f"written_{surface} as (\n{surface_statement}\n),\n")
    return _QUERIES["apply"].replace(_SURFACES, "".join(parts))


def _to_storable(plain_rows: list[Mapping[str, Any]]) -> Any:
    """Encode rows; only text that PostgreSQL cannot store is decoded and has its NULs replaced."""
    text = codec.encode_text(plain_rows)
    return codec.decode_json(event_rows.replace_nul(text)) if "\\u0000" in text else plain_rows


def _check_surface(surface: str) -> str:
    if surface not in KEY_BY_SURFACE:
        raise KeyError(f"no surface {surface!r}: there are {', '.join(KEY_BY_SURFACE)}")
    return surface


def record_to_row(record: asyncpg.Record) -> dict[str, Any]:
    """Show a record as it was applied: identities are text outside of the database."""
    return {
        name: str(value) if name.endswith("_id") and isinstance(value, int) else value
        for name, value in record.items()
        if value is not None or name not in OPTIONAL_COLUMNS
    }


_APPLY = _build_apply_query()
