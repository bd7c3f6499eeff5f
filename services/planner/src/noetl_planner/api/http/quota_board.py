"""Holds each tenant to its quota: calls of the API, and executions that begin and run."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from time import monotonic

from msgspec import Struct, field

from noetl_contracts.identity.quotas import StoredBytes, TenantQuota
from noetl_contracts.ids import ExecutionId, TenantId
from noetl_planner.api.http.limiters import CallBuckets, build_too_many_calls_error
from noetl_planner.api.http.problems import ApiError
from noetl_planner.identity.principals import Principal
from noetl_storage.ports.identity_ports import Quotas

# A quota that was changed holds everywhere after so long.
REMEMBERED_S = 5.0
# How old a count of executions may be.
COUNTED_S = 1.0
# What was asked for and is never shown, as it could not be decided on, counts no longer than this.
UNSHOWN_S = 600.0
RETRY_AFTER_S = 5
_TENANTS_MAX = 4096


class QuotaExceededError(ApiError):
    """A tenant uses as much of something as it may use."""


class RunningQuotaError(QuotaExceededError):
    """A tenant has as many executions that have not ended as it may have."""

    def __init__(self, tenant_id: TenantId, *, running: int, running_max: int) -> None:
        super().__init__(
            HTTPStatus.TOO_MANY_REQUESTS,
            code="quota_exceeded",
            detail=f"tenant {tenant_id} has {running} executions that have not ended; "
            f"its quota is {running_max}",
            hint="wait until some have ended, cancel some, or have the quota raised: "
            f"noetl tenant quota {tenant_id} --running N",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )


class SuspendedTenantError(QuotaExceededError):
    """Nothing of a tenant begins until it is resumed."""

    def __init__(self, tenant_id: TenantId) -> None:
        super().__init__(
            HTTPStatus.FORBIDDEN,
            code="tenant_suspended",
            detail=f"tenant {tenant_id} is suspended: what runs goes on, and nothing new begins",
            hint="who administers the whole installation resumes it: "
            f"noetl tenant resume {tenant_id}",
        )


class StorageQuotaError(QuotaExceededError):
    """A tenant has stored as much as it may store."""

    def __init__(self, tenant_id: TenantId, *, stored: StoredBytes, stored_bytes_max: int) -> None:
        super().__init__(
            HTTPStatus.INSUFFICIENT_STORAGE,
            code="storage_quota_exceeded",
            detail=f"tenant {tenant_id} has {stored.stored_bytes:,} bytes in the payload store "
            f"(counted at {stored.counted_at:%Y-%m-%d %H:%M} UTC); "
            f"its quota is {stored_bytes_max:,}",
            hint="let histories leave (noetl retention), collect what nothing mentions (noetl "
            "payloads gc), or have the quota raised: "
            f"noetl tenant quota {tenant_id} --stored BYTES. It counts with the next count",
        )


class _TenantCount(Struct, kw_only=True, eq=False):
    """What was known of a tenant at a moment, and what has begun here that was not shown then."""

    quota: TenantQuota
    quota_until: float
    stored: StoredBytes | None = None
    running: int = 0
    running_until: float = 0.0
    begun_at: dict[ExecutionId, float] = field(default_factory=dict)
    counting: asyncio.Lock = field(default_factory=asyncio.Lock)


class QuotaBoard:
    """Reads quotas every few seconds; counts what runs, and what begins here until it is shown.

    Of what begins at other planners each knows what the read models show.
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
            raise build_too_many_calls_error(f"tenant {tenant_id}", rate, wait_s=wait_s)

    @asynccontextmanager
    async def admit_start(
        self, tenant_id: TenantId, execution_id: ExecutionId
    ) -> AsyncIterator[None]:
        """Count an execution that the block begins; raises `QuotaExceededError` where too many run.

        One that the block fails to begin is not counted.
        """
        count = await self._get_count(tenant_id)
        if count.quota.is_suspended:
            raise SuspendedTenantError(tenant_id)
        await self.check_stored(tenant_id)
        running_max = count.quota.running_max
        if running_max is None:
            yield
            return
        await self._count_running(count, running_max)
        running = count.running + len(count.begun_at)
        if running >= running_max:
            raise RunningQuotaError(tenant_id, running=running, running_max=running_max)
        count.begun_at[execution_id] = monotonic()
        try:
            yield
        except BaseException:
            count.begun_at.pop(execution_id, None)
            raise

    async def check_stored(self, tenant_id: TenantId) -> None:
        """Raise `StorageQuotaError` where a tenant has stored more than it may, by the last count.

        Nothing is counted here: a reaper lists the store now and then.
        """
        count = await self._get_count(tenant_id)
        stored_bytes_max, stored = count.quota.stored_bytes_max, count.stored
        if stored_bytes_max is None or stored is None or stored.stored_bytes < stored_bytes_max:
            return
        raise StorageQuotaError(tenant_id, stored=stored, stored_bytes_max=stored_bytes_max)

    def forget_start(self, tenant_id: TenantId, execution_id: ExecutionId) -> None:
        """Count an execution no more that was not needed: its key had begun another."""
        if (count := self._counts.get(tenant_id)) is not None:
            count.begun_at.pop(execution_id, None)

    def forget_quota(self, tenant_id: TenantId) -> None:
        """Read a quota anew that was changed here; what has begun still counts."""
        if (count := self._counts.get(tenant_id)) is not None:
            count.quota_until = 0.0

    async def _count_running(self, count: _TenantCount, running_max: int) -> None:
        # Who comes meanwhile waits for this count, instead of asking for one more.
        async with count.counting:
            if count.running_until > monotonic():
                return
            execution_ids = tuple(count.begun_at)
            running = await self._quotas.count_running(
                count.quota.tenant_id, begun=execution_ids, running_max=running_max + 1
            )
            count.running, count.running_until = running.running, monotonic() + COUNTED_S
            oldest = monotonic() - UNSHOWN_S
            for execution_id in execution_ids:
                is_shown = execution_id not in running.unshown
                if is_shown or count.begun_at.get(execution_id, oldest) < oldest:
                    count.begun_at.pop(execution_id, None)

    async def _get_count(self, tenant_id: TenantId) -> _TenantCount:
        count = self._counts.get(tenant_id)
        if count is not None and count.quota_until > monotonic():
            return count
        quota = await self._quotas.find_quota(tenant_id) or TenantQuota(tenant_id=tenant_id)
        is_bounded = quota.stored_bytes_max is not None
        stored = await self._quotas.find_stored(tenant_id) if is_bounded else None
        count = self._counts.setdefault(tenant_id, _TenantCount(quota=quota, quota_until=0.0))
        count.quota, count.quota_until = quota, monotonic() + REMEMBERED_S
        count.stored = stored
        while len(self._counts) > _TENANTS_MAX:
            self._counts.popitem(last=False)
        return count
