"""What tenants store is counted of those whose quota bounds it, by one reaper at a time."""

from datetime import UTC, datetime

import pytest
from tests.support.manual_clock import ManualClock

from noetl_contracts.identity.quotas import StoredBytes, TenantQuota
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_reaper.sweeps.storage_count import StorageCount
from noetl_storage.memory.identities import MemoryQuotas
from noetl_storage.memory.leases import MemoryInstances
from noetl_storage.memory.store import MemoryStore
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.ports.errors import StorageUnavailable

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ACME, OTHER, FREE = TenantId("acme"), TenantId("other"), TenantId("free")


class World:
    """Three tenants with something in the store; two of them have a quota of it."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOON)
        self.store = MemoryStore(clock=self.clock)
        self.quotas = MemoryQuotas(self.store)
        self.payloads = MemoryPayloads()

    async def fill(self) -> None:
        for tenant in (ACME, OTHER, FREE):
            await self.put(tenant, "ops", b"12345")
            if tenant != FREE:
                await self.quotas.put_quota(TenantQuota(tenant_id=tenant, stored_bytes_max=9))

    async def put(self, tenant: TenantId, organization: str, data: bytes) -> None:
        await self.payloads.put_payload(
            data,
            media_type=JSON_MEDIA_TYPE,
            tenant_id=tenant,
            organization_id=OrganizationId(organization),
        )

    def count(self, store: object = None, *, owner: str = "one") -> StorageCount:
        return StorageCount(
            store or self.payloads,  # type: ignore[arg-type]  # a store that fails
            counts=self.quotas,
            instances=MemoryInstances(self.store),
            owner=owner,
            lease_s=60,
            clock=self.clock,
        )


@pytest.fixture
async def world() -> World:
    world = World()
    await world.fill()
    return world


async def test_all_that_a_bounded_tenant_stores_is_counted(world: World) -> None:
    await world.put(ACME, "west", b"67")
    await world.payloads.put_named(
        "artifacts/a", b"8", tenant_id=ACME, organization_id=OrganizationId("west")
    )
    # A tenant whose name begins alike is another one.
    await world.put(TenantId("acme2"), "ops", b"1234567890")
    assert await world.count().count_tenants()
    assert world.store.stored_by_tenant == {
        ACME: StoredBytes(stored_bytes=8, counted_at=NOON),
        OTHER: StoredBytes(stored_bytes=5, counted_at=NOON),
    }


async def test_one_reaper_at_a_time_counts(world: World) -> None:
    assert await world.count().count_tenants()
    assert not await world.count(owner="two").count_tenants()


class HalfStore:
    """Does not answer for one tenant."""

    async def count_stored_bytes(self, tenant_id: TenantId) -> int:
        if tenant_id == ACME:
            raise StorageUnavailable("no answer")
        return 7


async def test_what_cannot_be_counted_keeps_its_last_count_and_holds_up_nobody(
    world: World,
) -> None:
    await world.count().count_tenants()
    with pytest.raises(StorageUnavailable):
        await world.count(HalfStore()).count_tenants()
    assert world.store.stored_by_tenant[ACME].stored_bytes == 5
    assert world.store.stored_by_tenant[OTHER].stored_bytes == 7
