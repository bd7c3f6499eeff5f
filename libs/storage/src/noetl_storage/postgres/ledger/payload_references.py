"""Finds the payloads that the ledger and its tables refer to."""

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from datetime import datetime

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.ledger.surfaces import LIVE_EXECUTION
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database
from noetl_storage.process.digests import find_known_digests

_QUERIES = queries.load_queries("payload_references")
_HISTORIES_MAX = 500
# Of these the database searches the text in one query.
_EVENTS_MAX = 5000


class PostgresPayloadReferences:
    """Reads the whole ledger of an owner, a bounded number of events at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def hold_collector_lock(self, owner: Owner) -> AbstractAsyncContextManager[bool]:
        """Let one process at a time collect what is an owner's; False where another one does."""
        return self._database.hold_lock(f"payloads/{owner.tenant_id}/{owner.organization_id}")

    async def list_owners(self) -> list[Owner]:
        """Return every owner that has a history, in order."""
        return [
            Owner(
                tenant_id=TenantId(record["tenant_id"]),
                organization_id=OrganizationId(record["organization_id"]),
            )
            for record in await self._database.fetch_rows(_QUERIES["list_owners"])
        ]

    async def has_events(self, owner: Owner) -> bool:
        """Tell whether the ledger still holds an event of an owner."""
        return bool(
            await self._database.get_value(
                _QUERIES["has_events"], owner.tenant_id, owner.organization_id
            )
        )

    async def find_held_since(self, owner: Owner) -> datetime | None:
        """Return when the oldest work of an owner began that has not ended; None without any."""
        since: datetime | None = await self._database.get_value(
            _QUERIES["held_since"], owner.tenant_id, owner.organization_id, list(LIVE_EXECUTION)
        )
        return since

    async def iterate_mentioned(
        self, owner: Owner, digests: Collection[str]
    ) -> AsyncIterator[set[str]]:
        """Yield those of the digests that a durable record of the owner mentions, page by page."""
        beside = await self._database.fetch_rows(
            _QUERIES["list_beside"], owner.tenant_id, owner.organization_id
        )
        yield find_known_digests((record["run"] for record in beside), digests)
        async for executions, after, until in self._iterate_windows(owner):
            rows = await self._database.fetch_rows(
                _QUERIES["list_in_events"], executions, after, until, list(LIVE_EXECUTION)
            )
            yield find_known_digests((record["run"] for record in rows), digests)

    async def list_known_executions(self, owner: Owner, executions: Collection[str]) -> set[str]:
        """Return those of the executions of which the owner has a history."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_known"],
            owner.tenant_id,
            owner.organization_id,
            [int(execution) for execution in executions],
        )
        return {str(record["execution_id"]) for record in rows}

    async def _iterate_windows(self, owner: Owner) -> AsyncIterator[tuple[list[int], int, int]]:
        """Cut all histories into windows: some executions, after one version until another."""
        after, batch, events = 0, list[int](), 0
        while page := await self._database.fetch_rows(
            _QUERIES["list_histories"],
            owner.tenant_id,
            owner.organization_id,
            after,
            _HISTORIES_MAX,
        ):
            for record in page:
                after, version = record["execution_id"], record["version"]
                if events + version > _EVENTS_MAX and batch:
                    yield batch, 0, _EVENTS_MAX
                    batch, events = [], 0
                for start in range(_EVENTS_MAX, version, _EVENTS_MAX):
                    yield [after], start, start + _EVENTS_MAX
                batch.append(after)
                events += min(version, _EVENTS_MAX)
        if batch:
            yield batch, 0, _EVENTS_MAX
