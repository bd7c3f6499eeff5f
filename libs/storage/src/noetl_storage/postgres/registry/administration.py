"""The administration streams on PostgreSQL."""

from contextlib import AbstractAsyncContextManager

import asyncpg

from noetl_contracts import codec
from noetl_contracts.identity import administration
from noetl_contracts.identity.actors import Actor
from noetl_contracts.identity.administration import (
    AdministrationRecord,
    NewRecord,
    Outcome,
    RecordFilter,
)
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("administration")


class PostgresAdministrationLog:
    """Appends records through `noetl.append_administration`, which holds the chain."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open_change(self) -> AbstractAsyncContextManager[None]:
        """Run what is stored within, and the records appended, as one transaction."""
        return self._database.share_transaction()

    async def hold_stream(self, *, tenant_id: TenantId, organization_id: OrganizationId) -> None:
        """Let other changes of an organization wait until the change of this task has ended."""
        await self._database.fetch_rows(_QUERIES["lock_head"], tenant_id, organization_id)

    async def append_record(self, record: NewRecord) -> AdministrationRecord:
        """Seal a record behind the last of its stream."""
        async with self._database.open_transaction() as transaction:
            (head,) = await transaction.fetch_rows(
                _QUERIES["lock_head"], record.tenant_id, record.organization_id
            )
            sealed = administration.seal_record(
                record, version=head["version"] + 1, previous=head["checksum"]
            )
            await transaction.execute_statement(
                _QUERIES["append"],
                sealed.tenant_id,
                sealed.organization_id,
                sealed.version,
                head["checksum"],
                sealed.checksum,
                sealed.event_time,
                sealed.action,
                sealed.target,
                sealed.outcome,
                sealed.actor,
                sealed.details,
            )
        return sealed

    async def list_records(
        self,
        record_filter: RecordFilter,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        after_version: int,
        records_max: int,
    ) -> list[AdministrationRecord]:
        """Return records after a version that a filter accepts, in order."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_records"],
            tenant_id,
            organization_id,
            after_version,
            record_filter.who,
            record_filter.what,
            record_filter.since,
            record_filter.outcome,
            records_max,
            record_filter.until,
        )
        return [_build_record(row) for row in rows]

    async def list_latest_records(
        self,
        record_filter: RecordFilter,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        records_max: int,
    ) -> list[AdministrationRecord]:
        """Return the latest records that a filter accepts, in order."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_latest"],
            tenant_id,
            organization_id,
            record_filter.who,
            record_filter.what,
            record_filter.since,
            record_filter.outcome,
            records_max,
            record_filter.until,
        )
        return [_build_record(row) for row in reversed(rows)]


def _build_record(row: asyncpg.Record) -> AdministrationRecord:
    return AdministrationRecord(
        tenant_id=TenantId(row["tenant_id"]),
        organization_id=OrganizationId(row["organization_id"]),
        version=row["version"],
        event_time=row["event_time"],
        action=row["action"],
        target=row["target"],
        outcome=Outcome(row["outcome"]),
        actor=codec.convert_value(row["actor"], Actor),
        details=row["details"],
        checksum=row["checksum"],
    )
