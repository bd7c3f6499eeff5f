"""Durable requests on PostgreSQL."""

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import Request
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load("requests")


class PostgresRequests:
    """Writes a request and its message through `noetl.submit_request`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def submit(self, request: Request) -> ExecutionId:
        """Keep a request; return its execution, or that of the earlier one with the same key."""
        found = await self._database.get_value(
            _QUERIES["submit"],
            request.request_id,
            int(request.execution_id),
            request.tenant_id,
            request.organization_id,
            request.kind,
            request.subject,
            request.data,
            request.idempotency_key,
        )
        return ExecutionId(str(found))

    async def find(self, request_id: str) -> Request | None:
        """Return a request that was kept, settled or not, or None."""
        row = await self._database.find_row(_QUERIES["find"], request_id)
        if row is None:
            return None
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

    async def redrive(self, *, older_than_s: float, requests_max: int) -> int:
        """Send requests again that no planner has settled; return how many."""
        sent: int = await self._database.get_value(_QUERIES["redrive"], older_than_s, requests_max)
        return sent
