"""Quotas of tenants over every adapter."""

from tests.conformance.storage.test_projections import execution_row, project
from tests.support.storage import TENANT, Stores, an_execution

from noetl_contracts.identity.quotas import TenantQuota
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
    assert await stores.quotas.list_quotas(quotas_max=9) == []


async def test_quotas_are_listed_by_tenant(stores: Stores) -> None:
    other = TenantQuota(tenant_id=TenantId("abc"), running_max=0)
    for quota in (ACME, other):
        await stores.quotas.put_quota(quota)
    assert await stores.quotas.list_quotas(quotas_max=9) == [other, ACME]
    assert await stores.quotas.list_quotas(quotas_max=1) == [other]


async def test_what_has_not_ended_counts(stores: Stores) -> None:
    for status in ("PENDING", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"):
        execution = an_execution()
        await project(stores, execution, execution=[execution_row(execution, status=status)])
    assert await stores.quotas.count_running(TENANT, running_max=9) == 3
    assert await stores.quotas.count_running(TENANT, running_max=2) == 2
    assert await stores.quotas.count_running(ACME.tenant_id, running_max=9) == 0
