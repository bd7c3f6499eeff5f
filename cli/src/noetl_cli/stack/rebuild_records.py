"""Records of administration of rebuilt read models, with every owner of what is rebuilt."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from msgspec import Struct

from noetl_cli.stack import administered_work
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_storage.ports.history_ports import LedgerAudit, ProjectionRebuilds
from noetl_storage.ports.ledger_ports import LedgerReader, Projections
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.postgres.database import Database

ORPHANS_MAX = 1000


class ReadModels(Projections, ProjectionRebuilds, Protocol):
    """Read models that can be replaced as well."""


class RebuildTarget(Struct, frozen=True, kw_only=True):
    """What is rebuilt: executions that are named, or those of a place, perhaps of a shard alone."""

    named: list[ExecutionId]
    shard: int | None
    place: dict[str, str]

    def __str__(self) -> str:
        """Name it as a record does."""
        if self.named:
            return f"execution {', '.join(self.named)}"
        return "every execution" if self.shard is None else f"shard {self.shard}"


async def list_owners(
    target: RebuildTarget, ledger: LedgerReader, models: ReadModels, audit: LedgerAudit
) -> list[Owner]:
    """Return every owner with something to rebuild; a place without a history is none."""
    owners: dict[Owner, None] = {}
    for execution_id in target.named:
        for event in await ledger.read_events(execution_id, events_max=1):
            owners[_build_owner(event.tenant_id, event.organization_id)] = None
    if target.named:
        return list(owners)
    place = _build_owner(target.place["tenant_id"], target.place["organization_id"])
    if await audit.list_histories(
        tenant_id=place.tenant_id,
        organization_id=place.organization_id,
        after=None,
        heads_max=1,
    ):
        owners[place] = None
    if target.shard is None:
        # Rows without a history, of any owner, are removed.
        for execution_id in await models.list_executions_ahead(executions_max=ORPHANS_MAX):
            for row in await models.list_rows("execution", execution_id):
                owners[_build_owner(row["tenant_id"], row["organization_id"])] = None
    return list(owners)


@asynccontextmanager
async def record_rebuild(
    database: Database, target: RebuildTarget, owners: list[Owner]
) -> AsyncIterator[dict[str, Any]]:
    """Record a rebuild with its owners; the block says what came of it."""
    outcome: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        details_of_owners = [
            await stack.enter_async_context(
                administered_work.record_work(
                    database, administered_work.REBUILD, str(target), owner=owner
                )
            )
            for owner in owners
        ]
        yield outcome
        for details in details_of_owners:
            details.update(outcome)


def _build_owner(tenant_id: str, organization_id: str) -> Owner:
    return Owner(tenant_id=TenantId(tenant_id), organization_id=OrganizationId(organization_id))
