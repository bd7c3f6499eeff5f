"""Holds each tenant to its quota: calls of the API, and executions that run."""

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from time import monotonic

from msgspec import Struct

from noetl_contracts.identity.quotas import TenantQuota
from noetl_contracts.ids import TenantId
from noetl_planner.api.http.limiters import CallBuckets, too_many_calls_error
from noetl_planner.api.http.problems import ApiError
from noetl_planner.identity.principals import Principal
from noetl_storage.ports.identity_ports import Quotas

# A quota that was changed holds everywhere after so long.
REMEMBERED_S = 5.0
# How old a count of executions may be; those that begin here meanwhile are added to it.
COUNTED_S = 1.0
RETRY_AFTER_S = 5
_TENANTS_MAX = 4096


class _TenantCount(Struct, kw_only=True):
    """What was known of a tenant at a moment, and how many executions have begun here since."""

    quota: TenantQuota
    quota_until: float
    running: int = 0
    running_until: float = 0.0


class QuotaBoard:
    """Reads quotas every few seconds, and counts between.

    Several planners count for themselves: together they may admit what begins within a second.
    """

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._counts: OrderedDict[TenantId, _TenantCount] = OrderedDict()
        self._buckets = CallBuckets()

    async def admit_call(self, tenant_id: TenantId, principal: Principal) -> None:
        """Count a call for its tenant; raises a 429. The installation's owner is not bounded."""
        rate = (await self._get_count(tenant_id)).quota.calls_per_s
        if rate is None or principal.has_all_roles:
            return
        wait_s = self._buckets.take_call(tenant_id, rate)
        if wait_s:
            raise too_many_calls_error(f"tenant {tenant_id}", rate, wait_s=wait_s)

    @asynccontextmanager
    async def admit_start(self, tenant_id: TenantId) -> AsyncIterator[None]:
        """Count an execution that the block begins; raises a 429 where too many run.

        One that the block fails to begin is not counted.
        """
        count = await self._get_count(tenant_id)
        running_max = count.quota.running_max
        if running_max is None:
            yield
            return
        if count.running_until <= monotonic():
            count.running = await self._quotas.count_running(tenant_id, running_max=running_max + 1)
            count.running_until = monotonic() + COUNTED_S
        if count.running >= running_max:
            raise ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                code="quota_exceeded",
                detail=f"tenant {tenant_id} has {count.running} executions that have not ended; "
                f"its quota is {running_max}",
                hint="wait until some have ended, cancel some, or have the quota raised: "
                f"noetl tenant quota {tenant_id} --running N",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        count.running += 1
        try:
            yield
        except BaseException:
            count.running -= 1
            raise

    def forget_tenant(self, tenant_id: TenantId) -> None:
        """Read a quota anew that was changed here."""
        self._counts.pop(tenant_id, None)

    async def _get_count(self, tenant_id: TenantId) -> _TenantCount:
        count = self._counts.get(tenant_id)
        if count is not None and count.quota_until > monotonic():
            return count
        quota = await self._quotas.find_quota(tenant_id) or TenantQuota(tenant_id=tenant_id)
        count = self._counts.setdefault(tenant_id, _TenantCount(quota=quota, quota_until=0.0))
        count.quota, count.quota_until = quota, monotonic() + REMEMBERED_S
        while len(self._counts) > _TENANTS_MAX:
            self._counts.popitem(last=False)
        return count
