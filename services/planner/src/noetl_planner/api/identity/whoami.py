"""Who asks, as the planner sees it."""

from datetime import datetime

from litestar import get
from msgspec import Struct

from noetl_planner.api.http.services import Services
from noetl_planner.identity.permissions import PERMISSIONS_BY_ROLE


class Whoami(Struct, frozen=True, kw_only=True):
    """A principal, the organization that it acts in, and what it may do there."""

    kind: str
    id: str
    name: str
    issuer: str
    via: str
    tenant: str
    organization: str
    roles: list[str]
    permissions: list[str]
    expires_at: datetime | None


@get("/auth/whoami", tags=["identity"])
async def show_principal(services: Services) -> Whoami:
    """Show who asks, where, and with which roles; a role of a folder is written ROLE:FOLDER."""
    access = services.access
    principal = access.principal
    allowed = {p for grant in access.grants for p in PERMISSIONS_BY_ROLE[grant.role]}
    return Whoami(
        kind=principal.kind,
        id=principal.id,
        name=principal.name,
        issuer=principal.issuer,
        via=principal.via,
        tenant=access.tenant_id,
        organization=access.organization_id,
        roles=access.list_roles(),
        permissions=sorted(allowed),
        expires_at=principal.expires_at,
    )


ROUTES = [show_principal]
