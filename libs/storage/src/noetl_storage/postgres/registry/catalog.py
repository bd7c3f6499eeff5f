"""Registered playbooks on PostgreSQL."""

from typing import Any

import asyncpg

from noetl_contracts.ids import CatalogId, OrganizationId, TenantId
from noetl_contracts.ledger.records import CatalogEntry
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("catalog")


class PostgresCatalog:
    """Numbers the versions of each path; an entry is never changed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def register_playbook(self, entry: CatalogEntry) -> CatalogEntry:
        """Keep a playbook as the next version of its path; the same digest keeps its version."""
        return await self._keep_entry(_QUERIES["register"], entry)

    async def keep_draft(self, entry: CatalogEntry) -> CatalogEntry:
        """Keep a playbook as a draft of its path, below version zero; the same text keeps it."""
        return await self._keep_entry(_QUERIES["keep_draft"], entry)

    async def register_batch(self, entries: list[CatalogEntry]) -> list[CatalogEntry]:
        """Keep playbooks of different paths as `register_playbook` does, all of them or none."""
        kept_by_path: dict[str, CatalogEntry] = {}
        async with self._database.open_transaction() as transaction:
            # In one order for everybody: two calls wait for each other at most once.
            for entry in sorted(entries, key=lambda entry: entry.path):
                (row,) = await transaction.fetch_rows(
                    _QUERIES["register"], *_build_arguments(entry)
                )
                kept_by_path[entry.path] = _build_entry(row)
        return [kept_by_path[entry.path] for entry in entries]

    async def _keep_entry(self, query: str, entry: CatalogEntry) -> CatalogEntry:
        (row,) = await self._database.fetch_rows(query, *_build_arguments(entry))
        return _build_entry(row)

    async def find_playbook(
        self,
        path: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        version: int | None = None,
    ) -> CatalogEntry | None:
        """Return a version of a playbook, the latest when none is named."""
        row = await self._database.find_row(
            _QUERIES["find"], tenant_id, organization_id, path, version
        )
        return None if row is None else _build_entry(row)

    async def get_entry(self, catalog_id: str) -> CatalogEntry:
        """Return an entry by identity; raises `KeyError`."""
        row = await self._database.find_row(_QUERIES["get"], int(catalog_id))
        if row is None:
            raise KeyError(f"no catalog entry {catalog_id}")
        return _build_entry(row)

    async def list_playbooks(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, entries_max: int
    ) -> list[CatalogEntry]:
        """Return the latest version of every playbook, by path."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_paths"], tenant_id, organization_id, entries_max
        )
        return [_build_entry(record) for record in rows]


def _build_arguments(entry: CatalogEntry) -> tuple[Any, ...]:
    return (
        int(entry.catalog_id),
        entry.tenant_id,
        entry.organization_id,
        entry.path,
        entry.digest,
        entry.source,
        entry.model,
        entry.diagnostics,
    )


def _build_entry(record: asyncpg.Record) -> CatalogEntry:
    return CatalogEntry(
        catalog_id=CatalogId(str(record["catalog_id"])),
        tenant_id=TenantId(record["tenant_id"]),
        organization_id=OrganizationId(record["organization_id"]),
        path=record["path"],
        version=record["version"],
        digest=record["digest"],
        source=record["source"],
        model=record["model"],
        diagnostics=record["diagnostics"],
        created_at=record["created_at"],
    )
