"""Schedules on PostgreSQL."""

from collections.abc import Sequence
from datetime import datetime

import asyncpg

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import Request
from noetl_contracts.requests.schedules import (
    CatchUp,
    Overlap,
    Schedule,
    SkippedTimes,
    SkipReason,
)
from noetl_storage.postgres import event_rows, queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("schedules")


class PostgresSchedules:
    """Fires through `noetl.fire_schedule`, which moves a schedule on with its request."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_schedule(self, schedule: Schedule) -> Schedule:
        """Keep a schedule under its name; one that is there keeps its identity and its past."""
        (row,) = await self._database.fetch_rows(
            _QUERIES["put"],
            int(schedule.schedule_id),
            schedule.tenant_id,
            schedule.organization_id,
            schedule.name,
            schedule.path,
            schedule.version,
            schedule.workload,
            schedule.cron,
            schedule.timezone,
            schedule.catch_up,
            schedule.catch_up_max,
            schedule.overlap,
            schedule.is_enabled,
            schedule.next_at,
            schedule.actor,
        )
        return _build_schedule(row)

    async def find_schedule(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Schedule | None:
        """Return a schedule by name, or None."""
        row = await self._database.find_row(_QUERIES["find"], tenant_id, organization_id, name)
        return None if row is None else _build_schedule(row)

    async def list_schedules(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, schedules_max: int
    ) -> list[Schedule]:
        """Return the schedules in the order of their names."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_schedules"], tenant_id, organization_id, schedules_max
        )
        return [_build_schedule(row) for row in rows]

    async def switch_schedule(self, schedule: Schedule) -> bool:
        """Keep whether a schedule is enabled, and its next time; False when it was changed."""
        row = await self._database.find_row(
            _QUERIES["switch"],
            int(schedule.schedule_id),
            schedule.revision,
            schedule.is_enabled,
            schedule.next_at,
        )
        return row is not None

    async def remove_schedule(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a schedule; False when there was none."""
        row = await self._database.find_row(_QUERIES["remove"], tenant_id, organization_id, name)
        return row is not None

    async def list_due_schedules(self, *, now: datetime, schedules_max: int) -> list[Schedule]:
        """Return enabled schedules whose next time has come, the longest due first.

        Those of a suspended tenant wait.
        """
        rows = await self._database.fetch_rows(_QUERIES["list_due"], now, schedules_max)
        return [_build_schedule(row) for row in rows]

    async def fire_schedule(
        self,
        schedule: Schedule,
        *,
        nominal_at: datetime,
        next_at: datetime | None,
        request: Request,
    ) -> ExecutionId | None:
        """Ask for an execution and move on; None when the schedule is no longer as it was read."""
        execution_number = await self._database.get_value(
            _QUERIES["fire"],
            int(schedule.schedule_id),
            schedule.revision,
            schedule.next_at,
            next_at,
            nominal_at,
            *event_rows.build_request_columns(request),
        )
        return None if execution_number is None else ExecutionId(str(execution_number))

    async def skip_times(
        self, schedule: Schedule, skipped: SkippedTimes, *, next_at: datetime | None
    ) -> bool:
        """Move on without an execution, and record the times; see `noetl.skip_schedule_times`."""
        running_id = skipped.running_execution_id
        is_moved: bool = await self._database.get_value(
            _QUERIES["skip"],
            int(schedule.schedule_id),
            schedule.revision,
            schedule.next_at,
            next_at,
            skipped.first_at,
            skipped.last_at,
            skipped.times,
            skipped.is_exact,
            skipped.reason,
            None if running_id is None else int(running_id),
            skipped.skipped_at,
        )
        return is_moved

    async def list_skipped_times(
        self, schedule_ids: Sequence[str], *, skips_max: int
    ) -> dict[str, list[SkippedTimes]]:
        """Return the newest records of times passed over, newest first, by their schedule."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_skips"], [int(number) for number in schedule_ids], skips_max
        )
        skips: dict[str, list[SkippedTimes]] = {}
        for row in rows:
            skips.setdefault(str(row["schedule_id"]), []).append(_build_skipped_times(row))
        return skips


def _build_schedule(row: asyncpg.Record) -> Schedule:
    last_execution_number = row["last_execution_id"]
    return Schedule(
        schedule_id=str(row["schedule_id"]),
        tenant_id=TenantId(row["tenant_id"]),
        organization_id=OrganizationId(row["organization_id"]),
        name=row["name"],
        path=row["path"],
        version=row["version"],
        workload=row["workload"],
        cron=row["cron"] or "",
        timezone=row["timezone"],
        catch_up=CatchUp(row["catch_up"]),
        catch_up_max=row["catch_up_max"],
        overlap=Overlap(row["overlap"]),
        is_enabled=row["is_enabled"],
        revision=row["revision"],
        next_at=row["next_at"],
        last_at=row["last_at"],
        last_execution_id=None
        if last_execution_number is None
        else ExecutionId(str(last_execution_number)),
        skipped_count=row["skipped_count"],
        actor=event_rows.read_actor_column(row["actor"]),
    )


def _build_skipped_times(row: asyncpg.Record) -> SkippedTimes:
    running_number = row["running_execution_id"]
    return SkippedTimes(
        first_at=row["first_at"],
        last_at=row["last_at"],
        times=row["times"],
        is_exact=row["is_exact"],
        reason=SkipReason(row["reason"]),
        running_execution_id=None if running_number is None else ExecutionId(str(running_number)),
        skipped_at=row["skipped_at"],
    )
