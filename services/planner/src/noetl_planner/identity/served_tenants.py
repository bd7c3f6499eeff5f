"""Which tenants an installation serves: all but those that are served elsewhere, or one alone."""

from collections.abc import Mapping

from msgspec import Struct

from noetl_contracts.errors import MalformedMessage, Permanent
from noetl_contracts.ids import TenantId
from noetl_storage.ports.identity_ports import Identities


class TenantNotServed(MalformedMessage):
    """Facts of a tenant that is served by another installation, in a database of its own."""


class TenantKeptHere(Permanent):
    """The database holds something of a tenant that this installation must not serve."""


class ServedTenants(Struct, frozen=True, kw_only=True):
    """The tenants of this installation, and the addresses at which the others are served.

    With `only` it is that tenant alone, whose database nobody else shares.
    """

    only: TenantId | None = None
    url_by_tenant: Mapping[str, str] = {}

    def is_served(self, tenant_id: TenantId) -> bool:
        """Tell whether a tenant's executions may be in this installation's database."""
        if self.only is not None:
            return tenant_id == self.only
        return tenant_id not in self.url_by_tenant

    def check_served(self, tenant_id: TenantId) -> None:
        """Raise `TenantNotServed` for facts of a tenant that is served elsewhere."""
        if not self.is_served(tenant_id):
            raise TenantNotServed(
                f"tenant {tenant_id[:80]!r} is not served by this installation: "
                "its facts belong to its own NATS account"
            )


async def check_database(served: ServedTenants, identities: Identities) -> None:
    """Refuse to serve from a database that others' data are in; raises `TenantKeptHere`."""
    for tenant, url in served.url_by_tenant.items():
        if await identities.has_tenant(TenantId(tenant)):
            raise TenantKeptHere(
                f"tenant {tenant!r} is to be served at {url}, and this database keeps something "
                "of it: histories do not move between databases. Leave it out of "
                "NOETL_PLANNER_TENANTS_ELSEWHERE, let it run out (noetl tenant suspend "
                f"{tenant}), and begin under a new name at {url}"
            )
    if served.only is None:
        return
    other = await identities.find_other_tenant(served.only)
    if other is not None:
        raise TenantKeptHere(
            f"NOETL_PLANNER_ONLY_TENANT=true keeps this database to tenant {served.only!r}, and "
            f"tenant {other!r} is in it: name the tenant's own database in "
            f"NOETL_PLANNER_POSTGRES_DSN (noetl tenant database {served.only} makes one)"
        )
