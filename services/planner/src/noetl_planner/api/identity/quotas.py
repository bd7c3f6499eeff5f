"""Quotas of tenants, and whether they are suspended: set by who administers the installation."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated

from litestar import get, patch, post
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.status_codes import HTTP_200_OK
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from noetl_contracts.identity.quotas import TenantQuota, TenantUsage
from noetl_contracts.ids import TenantId
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, Services

QUOTAS_MAX = 1000
# Whole numbers that every reader of JSON holds.
NUMBER_MAX = 2**53
_SETTER = "who administers the whole installation sets the quotas of tenants, and suspends them"


class QuotaChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant may use at most: what is left out stays as it is, null is no bound."""

    running_max: Annotated[int, Meta(ge=0, le=1_000_000)] | UnsetType | None = UNSET
    calls_per_s: Annotated[float, Meta(gt=0, le=1_000_000)] | UnsetType | None = UNSET
    stored_bytes_max: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] | UnsetType | None = UNSET


class QuotaView(Struct, frozen=True, kw_only=True):
    """What a tenant may use at most."""

    tenant: str
    running_max: int | None
    calls_per_s: float | None
    stored_bytes_max: int | None
    suspended: bool


class UsageView(QuotaView, frozen=True, kw_only=True):
    """What a tenant may use at most, how many of its executions have not ended, and what it stores.

    `stored_bytes` is what a reaper counted last; null where the quota does not bound it.
    """

    running: int
    stored_bytes: int | None
    counted_at: datetime | None


class SuspensionView(Struct, frozen=True, kw_only=True):
    """Whether nothing new of a tenant begins."""

    tenant: str
    suspended: bool


class UsageList(Struct, frozen=True, kw_only=True):
    """Quotas by tenant; where there are more, `next_after` asks for them."""

    quotas: list[UsageView]
    next_after: str | None


@get("/quotas", tags=["identity"])
async def list_quotas(
    services: Services,
    tenant: Annotated[str | None, QueryParameter(min_length=1, max_length=200)] = None,
    after: Annotated[str, QueryParameter(max_length=64)] = "",
) -> UsageList:
    """List the quotas: of all tenants for who administers the installation, else the own one.

    With a `tenant` it is that one's alone.
    """
    if tenant is not None:
        await _check_tenant(services, tenant)
    elif not services.sees_all_tenants:
        tenant = services.tenant_id
    usages = await services.identity.quotas.list_usage(
        tenant_id=None if tenant is None else TenantId(tenant),
        after=after,
        tenants_max=QUOTAS_MAX + 1,
    )
    page = usages[:QUOTAS_MAX]
    return UsageList(
        quotas=[_view_usage(usage) for usage in page],
        next_after=page[-1].quota.tenant_id if len(usages) > QUOTAS_MAX else None,
    )


@patch("/quotas/{tenant:str}", tags=["identity"])
async def change_quota(
    services: Services, tenant: FromPath[str], data: JSONBody[QuotaChange]
) -> QuotaView:
    """Change what a tenant may use at most; it holds within seconds."""
    await _check_setter(services, tenant, "change the quota of")
    async with services.record_change("quota.changed", f"tenant {tenant}") as details:
        before = await services.identity.quotas.find_quota(TenantId(tenant))
        quota = _change_quota(before or TenantQuota(tenant_id=TenantId(tenant)), data)
        await services.identity.quotas.put_quota(quota)
        details["running_max"], details["calls_per_s"] = quota.running_max, quota.calls_per_s
        details["stored_bytes_max"] = quota.stored_bytes_max
    services.admission.quota_board.forget_quota(quota.tenant_id)
    return QuotaView(
        tenant=quota.tenant_id,
        running_max=quota.running_max,
        calls_per_s=quota.calls_per_s,
        stored_bytes_max=quota.stored_bytes_max,
        suspended=quota.is_suspended,
    )


@post("/tenants/{tenant:str}/suspend", tags=["identity"], status_code=HTTP_200_OK)
async def suspend_tenant(services: Services, tenant: FromPath[str]) -> SuspensionView:
    """Let nothing of a tenant begin from now on; what runs goes on, and schedules wait.

    It holds within seconds.
    """
    return await _switch_tenant(services, tenant, is_suspended=True)


@post("/tenants/{tenant:str}/resume", tags=["identity"], status_code=HTTP_200_OK)
async def resume_tenant(services: Services, tenant: FromPath[str]) -> SuspensionView:
    """Let a tenant that was suspended begin executions again; schedules catch up as they say."""
    return await _switch_tenant(services, tenant, is_suspended=False)


async def _switch_tenant(
    services: ApiServices, tenant: str, *, is_suspended: bool
) -> SuspensionView:
    await _check_setter(services, tenant, "suspend or resume")
    action = "tenant.suspended" if is_suspended else "tenant.resumed"
    async with services.record_change(action, f"tenant {tenant}"):
        before = await services.identity.quotas.find_quota(TenantId(tenant))
        quota = before or TenantQuota(tenant_id=TenantId(tenant))
        await services.identity.quotas.put_quota(structs.replace(quota, is_suspended=is_suspended))
    services.admission.quota_board.forget_quota(quota.tenant_id)
    return SuspensionView(tenant=quota.tenant_id, suspended=is_suspended)


async def _check_setter(services: ApiServices, tenant: str, verb: str) -> None:
    """Raise what keeps others than the installation's administrators from a tenant's bounds."""
    await _check_tenant(services, tenant)
    if not services.sees_all_tenants:
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            code="forbidden",
            detail=f"{services.access.principal.name} may not {verb} the own tenant",
            hint=_SETTER,
        )


async def _check_tenant(services: ApiServices, tenant: str) -> None:
    """Raise a 404 for a tenant that is not there, and for every other one but the own.

    Who does not administer the installation is not told whether there is such a tenant.
    """
    if not services.sees_all_tenants:
        if tenant != services.tenant_id:
            raise problems.build_not_found_error(
                f"there is no tenant {tenant[:80]!r} whose quota you may see or set", hint=_SETTER
            )
        return
    problems.check_tenant_name(tenant)
    services.check_served(tenant)
    if not await services.has_tenant(TenantId(tenant)):
        raise problems.build_no_tenant_error(tenant)


def _change_quota(quota: TenantQuota, change: QuotaChange) -> TenantQuota:
    return structs.replace(
        quota,
        running_max=quota.running_max if change.running_max is UNSET else change.running_max,
        calls_per_s=quota.calls_per_s if change.calls_per_s is UNSET else change.calls_per_s,
        stored_bytes_max=quota.stored_bytes_max
        if change.stored_bytes_max is UNSET
        else change.stored_bytes_max,
    )


def _view_usage(usage: TenantUsage) -> UsageView:
    quota = usage.quota
    # An earlier count says nothing of now, where the quota does not bound it any more.
    stored = None if quota.stored_bytes_max is None else usage.stored
    return UsageView(
        tenant=quota.tenant_id,
        running_max=quota.running_max,
        calls_per_s=quota.calls_per_s,
        stored_bytes_max=quota.stored_bytes_max,
        suspended=quota.is_suspended,
        running=usage.running,
        stored_bytes=None if stored is None else stored.stored_bytes,
        counted_at=None if stored is None else stored.counted_at,
    )


ROUTES = [list_quotas, change_quota, suspend_tenant, resume_tenant]
