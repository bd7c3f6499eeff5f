"""How long histories stay in PostgreSQL; they leave it through `noetl.compact` alone."""

from typing import Any

import asyncpg

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.ports.retention_ports import (
    ArchivedSpan,
    ArchiveUnit,
    CompactionStep,
    DueHistories,
    RetentionAction,
    RetentionHold,
    RetentionPolicy,
    UnitStatus,
    VersionSpan,
)
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("retention")
_SPAN = VersionSpan.__struct_fields__
_UNIT = ArchiveUnit.__struct_fields__


class PostgresArchiveIndex:
    """Finds what has left the ledger by the execution's identity."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_archived(self, execution_id: ExecutionId) -> list[ArchivedSpan]:
        """Return what has left the ledger of a history, by version; usually nothing."""
        rows = await self._database.fetch_rows(_QUERIES["find_archived"], int(execution_id))
        return [ArchivedSpan(span=_build_span(record), unit=_build_unit(record)) for record in rows]


class PostgresHolds:
    """Reads the tables; writes through functions that wait for a removal in progress."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def place_hold(
        self, owner: Owner, *, execution_id: ExecutionId | None, reason: str, who: str
    ) -> int:
        """Hold an execution, or all of an owner; return the hold, or the one that is open."""
        hold: int = await self._database.get_value(
            _QUERIES["place_hold"], *_get_owner_key(owner), _to_integer(execution_id), reason, who
        )
        return hold

    async def release_hold(
        self, owner: Owner, *, execution_id: ExecutionId | None, reason: str, who: str
    ) -> int | None:
        """End the open hold and return it; None when there is none."""
        hold: int | None = await self._database.get_value(
            _QUERIES["release_hold"], *_get_owner_key(owner), _to_integer(execution_id), reason, who
        )
        return hold

    async def list_holds(
        self, owner: Owner, *, has_released: bool, holds_max: int
    ) -> list[RetentionHold]:
        """Return the holds of an owner, the latest first."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_holds"], *_get_owner_key(owner), has_released, holds_max
        )
        return [codec.convert_value(_to_named_values(record), RetentionHold) for record in rows]

    async def find_policy(self, owner: Owner) -> RetentionPolicy | None:
        """Return an owner's own policy, or None."""
        return await _find_policy(self._database, owner)

    async def set_policy(
        self, owner: Owner, *, keep_days: int, action: RetentionAction, who: str
    ) -> None:
        """Set an owner's policy."""
        await self._database.execute_statement(
            _QUERIES["set_policy"], *_get_owner_key(owner), keep_days, action, who
        )

    async def list_units(self, owner: Owner, *, units_max: int) -> list[ArchiveUnit]:
        """Return the units of an owner, the latest first."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_units"], *_get_owner_key(owner), units_max
        )
        return [_build_unit(record) for record in rows]


class PostgresRetention:
    """Every step is one transaction, under a lock that all who take one share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_owners(self) -> list[Owner]:
        """Return every owner that has a history, in order."""
        rows = await self._database.fetch_rows(_QUERIES["list_owners"])
        return [codec.convert_value(dict(record), Owner) for record in rows]

    async def find_policy(self, owner: Owner) -> RetentionPolicy | None:
        """Return an owner's own policy, or None."""
        return await _find_policy(self._database, owner)

    async def count_due(self, owner: Owner, *, keep_s: float) -> list[DueHistories]:
        """Count what may leave now and is in no unit yet, by month."""
        rows = await self._database.fetch_rows(
            _QUERIES["count_due"], *_get_owner_key(owner), keep_s
        )
        return [codec.convert_value(dict(record), DueHistories) for record in rows]

    async def plan_unit(
        self,
        owner: Owner,
        *,
        action: RetentionAction,
        keep_s: float,
        histories_max: int,
        events_max: int,
        fold_version: int,
        upcaster_digest: str,
        who: str,
    ) -> ArchiveUnit | None:
        """Plan a unit of what is due, all of one month; None when nothing is."""
        manifest_id = await self._database.get_value(
            _QUERIES["plan"],
            *_get_owner_key(owner),
            action,
            keep_s,
            *(histories_max, events_max),
            *(fold_version, upcaster_digest),
            who,
        )
        if manifest_id is None:
            return None
        record = await self._database.find_row(_QUERIES["find_unit"], manifest_id)
        assert record is not None, "a unit is never removed"
        return _build_unit(record)

    async def list_open_units(self, *, after: str | None, units_max: int) -> list[ArchiveUnit]:
        """Return units that are not done with, in the order of their planning."""
        rows = await self._database.fetch_rows(_QUERIES["list_open"], int(after or 0), units_max)
        return [_build_unit(record) for record in rows]

    async def list_spans(self, manifest_id: str) -> list[VersionSpan]:
        """Return what a unit holds, by execution."""
        rows = await self._database.fetch_rows(_QUERIES["list_spans"], int(manifest_id))
        return [_build_span(record) for record in rows]

    async def advance_unit(
        self, manifest_id: str, *, status: UnitStatus, manifest_sha256: str | None = None
    ) -> bool:
        """Take note that a unit was archived, or verified; False when it is elsewhere."""
        is_there: bool = await self._database.get_value(
            _QUERIES["advance"], int(manifest_id), status, manifest_sha256
        )
        return is_there

    async def leave_history_out(
        self, manifest_id: str, execution_id: ExecutionId, *, reason: str
    ) -> None:
        """Take a history out of a unit that is only planned, and hold it for its owner to see."""
        await self._database.execute_statement(
            _QUERIES["leave_out"], int(manifest_id), int(execution_id), reason
        )

    async def compact_unit(
        self, manifest_id: str, *, can_delete: bool, histories_max: int
    ) -> CompactionStep:
        """Take the next step out of the ledger; raises `RetentionRefused` when data disagree."""
        record = await self._database.find_row(
            _QUERIES["compact"], int(manifest_id), can_delete, histories_max
        )
        assert record is not None, "the function answers with one row"
        return CompactionStep(
            status=UnitStatus(record["reached"]),
            histories=record["histories"],
            events=record["events"],
        )


async def _find_policy(database: Database, owner: Owner) -> RetentionPolicy | None:
    record = await database.find_row(_QUERIES["find_policy"], *_get_owner_key(owner))
    return None if record is None else codec.convert_value(dict(record), RetentionPolicy)


def _get_owner_key(owner: Owner) -> tuple[str, str]:
    return owner.tenant_id, owner.organization_id


def _to_integer(execution_id: ExecutionId | None) -> int | None:
    return None if execution_id is None else int(execution_id)


def _to_named_values(record: asyncpg.Record) -> dict[str, Any]:
    """Return a record's values with identities as texts."""
    values = dict(record)
    for name in ("execution_id", "manifest_id"):
        if values.get(name) is not None:
            values[name] = str(values[name])
    return values


def _build_span(record: asyncpg.Record) -> VersionSpan:
    values = _to_named_values(record)
    return codec.convert_value({name: values[name] for name in _SPAN}, VersionSpan)


def _build_unit(record: asyncpg.Record) -> ArchiveUnit:
    values = _to_named_values(record)
    return codec.convert_value({name: values[name] for name in _UNIT}, ArchiveUnit)
