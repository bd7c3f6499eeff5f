"""Counts what tenants have in the payload store, of those whose quota bounds it."""

from typing import Protocol

import structlog

from noetl_chassis.clock import Clock
from noetl_contracts.errors import NoetlError
from noetl_contracts.identity.quotas import StoredBytes
from noetl_contracts.ids import TenantId
from noetl_storage.ports.identity_ports import StorageCounts
from noetl_storage.ports.ledger_ports import Instances

ROLE = "storage_count"

log = structlog.get_logger(__name__)


class CountedStore(Protocol):
    """The payload store, as far as it is counted."""

    async def count_stored_bytes(self, tenant_id: TenantId) -> int:
        """Add up what all objects of a tenant take in the store, of every organization."""


class StorageCount:
    """Lists the objects of each bounded tenant; of all instances one does it at a time."""

    def __init__(
        self,
        store: CountedStore,
        *,
        counts: StorageCounts,
        instances: Instances,
        owner: str,
        lease_s: float,
        clock: Clock,
    ) -> None:
        self._store = store
        self._counts = counts
        self._instances = instances
        self._owner = owner
        self._lease_s = lease_s
        self._clock = clock

    async def count_tenants(self) -> bool:
        """Count every bounded tenant if nobody else does; raises the first failure at the end.

        Where one cannot be counted, its last count stays, and the others are counted.
        """
        if not await self._instances.claim_role(
            role=ROLE, owner=self._owner, lease_s=self._lease_s
        ):
            return False
        tenants = await self._counts.list_bounded_tenants()
        failures = [failure for tenant in tenants if (failure := await self._count_tenant(tenant))]
        if failures:
            raise failures[0]
        return True

    async def _count_tenant(self, tenant_id: TenantId) -> NoetlError | None:
        # As of before the look: what is written meanwhile may be missing.
        counted_at = self._clock.now()
        try:
            stored_bytes = await self._store.count_stored_bytes(tenant_id)
        except NoetlError as failure:
            log.warning("stored bytes not counted", tenant_id=tenant_id, reason=str(failure))
            return failure
        await self._counts.put_stored(
            tenant_id, StoredBytes(stored_bytes=stored_bytes, counted_at=counted_at)
        )
        return None
