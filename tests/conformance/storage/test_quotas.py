"""Quotas of tenants over every adapter."""

from typing import Any

from tests.conformance.storage.test_projections import execution_row, project
from tests.support.storage import NOON, TENANT, Stores, a_request, an_execution

from noetl_contracts.identity.quotas import RunningCount, StoredBytes, TenantQuota
from noetl_contracts.ids import TenantId

ACME = TenantQuota(tenant_id=TenantId("emca"), running_max=3, calls_per_s=2.5)


async def test_a_quota_is_found_as_it_was_kept_last(stores: Stores) -> None:
    assert await stores.quotas.find_quota(ACME.tenant_id) is None
    await stores.quotas.put_quota(TenantQuota(tenant_id=ACME.tenant_id, running_max=1))
    await stores.quotas.put_quota(ACME)
    assert await stores.quotas.find_quota(ACME.tenant_id) == ACME


async def test_an_empty_quota_takes_the_bounds_away(stores: Stores) -> None:
    await stores.quotas.put_quota(ACME)
    await stores.quotas.put_quota(TenantQuota(tenant_id=ACME.tenant_id))
    assert await stores.quotas.find_quota(ACME.tenant_id) is None
    assert await list_tenants(stores) == []


async def test_a_suspended_tenant_has_a_quota_without_bounds(stores: Stores) -> None:
    suspended = TenantQuota(tenant_id=ACME.tenant_id, is_suspended=True)
    await stores.quotas.put_quota(suspended)
    assert await stores.quotas.find_quota(ACME.tenant_id) == suspended
    assert await list_tenants(stores) == [suspended]


async def list_tenants(stores: Stores, **wanted: Any) -> list[TenantQuota]:
    wanted = {"tenant_id": None, "after": "", "tenants_max": 9, **wanted}
    return [usage.quota for usage in await stores.quotas.list_usage(**wanted)]


async def test_quotas_are_listed_by_tenant(stores: Stores) -> None:
    other = TenantQuota(tenant_id=TenantId("Abc"), running_max=0)
    for quota in (ACME, other):
        await stores.quotas.put_quota(quota)
    assert await list_tenants(stores) == [other, ACME]
    assert await list_tenants(stores, tenants_max=1) == [other]
    assert await list_tenants(stores, after="Abc") == [ACME]
    assert await list_tenants(stores, tenant_id=ACME.tenant_id) == [ACME]


async def test_what_has_not_ended_counts(stores: Stores) -> None:
    shown = []
    for status in ("PENDING", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"):
        execution = an_execution()
        shown.append(execution)
        await project(stores, execution, execution=[execution_row(execution, status=status)])
    counted = await stores.quotas.count_running(TENANT, begun=[], running_max=9)
    assert counted == RunningCount(running=3, unshown=frozenset())
    unknown = an_execution()
    counted = await stores.quotas.count_running(TENANT, begun=[*shown, unknown], running_max=2)
    assert counted == RunningCount(running=2, unshown=frozenset({unknown}))
    nobody = await stores.quotas.count_running(ACME.tenant_id, begun=[], running_max=9)
    assert nobody.running == 0
    await stores.quotas.put_quota(TenantQuota(tenant_id=TENANT, running_max=7))
    (usage,) = await stores.quotas.list_usage(tenant_id=TENANT, after="", tenants_max=9)
    assert usage.running == 3


async def test_a_request_is_found_by_its_key_in_its_tenant(stores: Stores) -> None:
    request = a_request(idempotency_key="k")
    await stores.requests.submit_request(request)
    key = request.idempotency_key or ""
    assert await stores.requests.find_keyed_request(key, tenant_id=TENANT) == request
    assert await stores.requests.find_keyed_request(key, tenant_id=ACME.tenant_id) is None
    assert await stores.requests.find_keyed_request("other", tenant_id=TENANT) is None


async def test_what_is_stored_is_shown_as_it_was_counted_last(stores: Stores) -> None:
    counts = stores.storage_counts
    bounded = TenantQuota(tenant_id=ACME.tenant_id, stored_bytes_max=2**40)
    for quota in (bounded, TenantQuota(tenant_id=TENANT, running_max=7)):
        await stores.quotas.put_quota(quota)
    assert await stores.quotas.find_quota(ACME.tenant_id) == bounded
    assert await counts.list_bounded_tenants() == [ACME.tenant_id]
    assert await stores.quotas.find_stored(ACME.tenant_id) is None
    for stored_bytes in (5, 2**40 + 1):
        await counts.put_stored(
            ACME.tenant_id, StoredBytes(stored_bytes=stored_bytes, counted_at=NOON)
        )
    stored = StoredBytes(stored_bytes=2**40 + 1, counted_at=NOON)
    assert await stores.quotas.find_stored(ACME.tenant_id) == stored
    usages = await stores.quotas.list_usage(tenant_id=None, after="", tenants_max=9)
    assert [(usage.quota.tenant_id, usage.stored) for usage in usages] == [
        (TENANT, None),
        (ACME.tenant_id, stored),
    ]
