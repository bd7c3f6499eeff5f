"""Quotas of tenants: set by who administers the installation, seen by each tenant's own."""

from typing import Annotated

from litestar import get, put
from litestar.params import FromPath, JSONBody
from msgspec import Meta, Struct

from noetl_contracts import subjects
from noetl_contracts.identity.quotas import TenantQuota
from noetl_contracts.ids import TenantId
from noetl_planner.api.http import problems
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.identity.permissions import Permission

QUOTAS_MAX = 1000
_COUNTED_MAX = 1_000_000


class QuotaBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant may use at most; what is left out is not bounded."""

    running_max: Annotated[int, Meta(ge=0, le=_COUNTED_MAX)] | None = None
    calls_per_s: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None


class QuotaView(Struct, frozen=True, kw_only=True):
    """What a tenant may use at most, and how many of its executions have not ended."""

    tenant: str
    running_max: int | None
    calls_per_s: float | None
    running: int


class QuotaList(Struct, frozen=True, kw_only=True):
    """The quotas that the caller may see."""

    quotas: list[QuotaView]


@get("/quotas", tags=["identity"])
async def list_quotas(services: Services) -> QuotaList:
    """List the quotas: of all tenants for who administers the installation, else the own one."""
    if _administers_installation(services):
        found = await services.quotas.list_quotas(quotas_max=QUOTAS_MAX)
    else:
        own = await services.quotas.find_quota(services.tenant_id)
        found = [] if own is None else [own]
    return QuotaList(quotas=[await _view_quota(services, quota) for quota in found])


@put("/quotas/{tenant:str}", tags=["identity"])
async def put_quota(
    services: Services, tenant: FromPath[str], data: JSONBody[QuotaBody]
) -> QuotaView:
    """Bound a tenant, or with an empty body no more; it holds within seconds."""
    if not _administers_installation(services):
        # As with everything of other tenants: whether there is such a tenant is not told.
        raise problems.not_found_error(
            f"there is no tenant {tenant[:80]!r} whose quota you may set",
            hint="who administers the whole installation sets the quotas of tenants",
        )
    if not subjects.is_subject_token(tenant):
        raise problems.bad_request_error(
            f"{tenant[:80]!r} names no tenant: use 1 to 64 letters, digits, '_' or '-'"
        )
    quota = TenantQuota(
        tenant_id=TenantId(tenant), running_max=data.running_max, calls_per_s=data.calls_per_s
    )
    async with services.record_change(
        "quota.changed",
        f"tenant {tenant}",
        running_max=quota.running_max,
        calls_per_s=quota.calls_per_s,
    ):
        await services.quotas.put_quota(quota)
    services.quota_board.forget_tenant(quota.tenant_id)
    return await _view_quota(services, quota)


def _administers_installation(services: ApiServices) -> bool:
    return services.is_own_installation and services.access.has_permission_everywhere(
        Permission.ADMINISTER
    )


async def _view_quota(services: ApiServices, quota: TenantQuota) -> QuotaView:
    return QuotaView(
        tenant=quota.tenant_id,
        running_max=quota.running_max,
        calls_per_s=quota.calls_per_s,
        running=await services.quotas.count_running(quota.tenant_id, running_max=_COUNTED_MAX),
    )


ROUTES = [list_quotas, put_quota]
