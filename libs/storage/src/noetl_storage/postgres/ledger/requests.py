"""Durable requests on PostgreSQL."""

import asyncpg

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import InboxMatch, InboxMessage, InboxOutcome, Request
from noetl_storage.ledger.surfaces import read_open_waits
from noetl_storage.postgres import event_rows, queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("requests")


class PostgresRequests:
    """Writes a request and its message through `noetl.submit_request`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def submit_request(self, request: Request) -> ExecutionId:
        """Keep a request; return its execution, or that of the earlier one with the same key."""
        value = await self._database.get_value(
            _QUERIES["submit"], *event_rows.build_request_columns(request)
        )
        return ExecutionId(str(value))

    async def find_request(self, request_id: str) -> Request | None:
        """Return a request that was kept, settled or not, or None."""
        row = await self._database.find_row(_QUERIES["find"], request_id)
        return None if row is None else _build_request(row)

    async def find_keyed_request(self, key: str, *, tenant_id: TenantId) -> Request | None:
        """Return what a tenant has asked for under an idempotency key, or None."""
        row = await self._database.find_row(_QUERIES["find_keyed"], tenant_id, key)
        return None if row is None else _build_request(row)

    async def redrive_requests(self, *, older_than_s: float, requests_max: int) -> int:
        """Send requests again that no planner has settled; return how many."""
        request_count: int = await self._database.get_value(
            _QUERIES["redrive"], older_than_s, requests_max
        )
        return request_count

    async def forget_requests(self, *, settled_for_s: float, requests_max: int) -> int:
        """Delete requests of the reaper that were settled so long ago; return how many.

        A request with an idempotency key stays: a repetition gets its answer.
        """
        forgotten: int = await self._database.get_value(
            _QUERIES["forget"], settled_for_s, requests_max
        )
        return forgotten

    async def keep_message(
        self, inbox_message: InboxMessage, *, open_wait: str | None, is_single: bool
    ) -> tuple[InboxOutcome, int]:
        """Keep a message from outside; return what became of it and the id of the one kept."""
        (row,) = await self._database.fetch_rows(
            _QUERIES["keep_letter"],
            inbox_message.tenant_id,
            inbox_message.organization_id,
            inbox_message.address,
            inbox_message.digest,
            inbox_message.data,
            open_wait,
            is_single,
            inbox_message.actor,
        )
        return InboxOutcome(row["reception"]), row["kept_id"]

    async def find_message(
        self, address: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> InboxMessage | None:
        """Return the latest inbox message at an address, delivered or not, or None."""
        row = await self._database.find_row(
            _QUERIES["find_letter"], tenant_id, organization_id, address
        )
        return None if row is None else _build_message(row)

    async def deliver_message(self, letter_id: int, *, open_wait: str, request: Request) -> bool:
        """Deliver an inbox message to a waiting command; False if it was delivered before."""
        is_delivered: bool = await self._database.get_value(
            _QUERIES["hand_over"],
            letter_id,
            open_wait,
            # A letter is handed over once, and its request needs no key.
            *event_rows.build_request_columns(request)[:-1],
        )
        return is_delivered

    async def list_matches(self, *, matches_max: int) -> list[InboxMatch]:
        """Return undelivered inbox messages for which a command waits."""
        rows = await self._database.fetch_rows(_QUERIES["list_matches"], matches_max)
        return [
            InboxMatch(
                letter=_build_message(row),
                wait=read_open_waits([dict(row)])[0],
            )
            for row in rows
        ]


def _build_message(row: asyncpg.Record) -> InboxMessage:
    return InboxMessage(
        tenant_id=TenantId(row["tenant_id"]),
        organization_id=OrganizationId(row["organization_id"]),
        address=row["address"],
        digest=row["digest"],
        data=row["data"],
        letter_id=row["letter_id"],
        actor=event_rows.read_actor_column(row["actor"]),
    )


def _build_request(row: asyncpg.Record) -> Request:
    return Request(
        request_id=row["request_id"],
        execution_id=ExecutionId(str(row["execution_id"])),
        tenant_id=TenantId(row["tenant_id"]),
        organization_id=OrganizationId(row["organization_id"]),
        kind=row["kind"],
        subject=row["subject"],
        data=row["data"],
        idempotency_key=row["idempotency_key"],
    )
