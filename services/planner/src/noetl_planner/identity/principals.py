"""Principals: who a request comes from, and what each may do in one organization."""

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from noetl_contracts.identity.actors import Actor, ActorKind, Via
from noetl_contracts.identity.role_bindings import ALL_ORGANIZATIONS, RoleBinding
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_planner.identity.permissions import PERMISSIONS_BY_ROLE, Permission, Role


class Principal(Struct, frozen=True, kw_only=True):
    """Who asks, as far as a token, a key or a session proved it.

    `home` is the only organization that an API key opens, and `maker` who made the key.
    `has_all_roles` is for the owner of the installation, and for everybody where authentication is
    off. `groups_at` is when the provider gave the groups. `bindings` are those that were read with
    a key a moment ago; None: they are still to be read.
    """

    kind: ActorKind
    id: str
    name: str
    issuer: str = ""
    via: Via = Via.API
    groups: tuple[str, ...] = ()
    groups_at: datetime | None = None
    key_prefix: str = ""
    maker: Actor | None = None
    home: tuple[TenantId, OrganizationId] | None = None
    has_all_roles: bool = False
    expires_at: datetime | None = None
    bindings: tuple[RoleBinding, ...] | None = None

    def build_actor(self) -> Actor:
        """Return this principal as the actor of events."""
        return Actor(
            kind=self.kind,
            id=self.id,
            name=self.name,
            issuer=self.issuer,
            via=self.via,
            key_prefix=self.key_prefix,
            maker=self.maker,
        )


class Grant(Struct, frozen=True, kw_only=True):
    """A role, and the folder of playbooks that it holds for; empty is all of them.

    `is_everywhere` says that it holds in every organization of the tenant.
    """

    role: Role
    path_prefix: str = ""
    is_everywhere: bool = False

    def covers_path(self, path: str) -> bool:
        """Tell whether a playbook's path is the grant's folder or in it."""
        prefix = self.path_prefix
        return not prefix or path == prefix or path.startswith(f"{prefix}/")


class Access(Struct, frozen=True, kw_only=True):
    """A principal in one organization, with the roles that it has there."""

    principal: Principal
    tenant_id: TenantId
    organization_id: OrganizationId
    grants: tuple[Grant, ...] = ()

    def has_permission(self, permission: Permission, *, path: str | None = None) -> bool:
        """Tell whether something is allowed: for a playbook, else for all of them.

        What no path restricts needs a grant for all playbooks.
        """
        return any(
            permission in PERMISSIONS_BY_ROLE[grant.role]
            and (not grant.path_prefix if path is None else grant.covers_path(path))
            for grant in self.grants
        )

    def has_permission_somewhere(self, permission: Permission) -> bool:
        """Tell whether something is allowed for any playbook at all."""
        return any(permission in PERMISSIONS_BY_ROLE[grant.role] for grant in self.grants)

    def has_permission_everywhere(self, permission: Permission) -> bool:
        """Tell whether something is allowed in every organization of the tenant.

        An API key opens one organization, also of an account with roles in all.
        """
        if self.principal.has_all_roles:
            return True
        return self.principal.home is None and any(
            grant.is_everywhere
            and not grant.path_prefix
            and permission in PERMISSIONS_BY_ROLE[grant.role]
            for grant in self.grants
        )

    def list_path_prefixes(self, permission: Permission) -> tuple[str, ...]:
        """Return the folders for which something is allowed; none named: all playbooks."""
        if self.has_permission(permission):
            return ()
        return tuple(
            grant.path_prefix
            for grant in self.grants
            if permission in PERMISSIONS_BY_ROLE[grant.role]
        )

    def list_roles(self) -> list[str]:
        """Return the roles with their folders, as people write them."""
        return sorted(
            {
                str(grant.role) if not grant.path_prefix else f"{grant.role}:{grant.path_prefix}"
                for grant in self.grants
            }
        )


# All that people do; none of it is a worker's.
ALL_GRANTS = (Grant(role=Role.ADMIN),)


def build_system_access(tenant_id: TenantId, organization_id: OrganizationId) -> Access:
    """Return the access of what the planner does by itself, as starting what messages start."""
    principal = Principal(kind=ActorKind.SERVICE, id="planner", name="planner", has_all_roles=True)
    return Access(
        principal=principal,
        tenant_id=tenant_id,
        organization_id=organization_id,
        grants=(*ALL_GRANTS, Grant(role=Role.WORKER)),
    )


def select_grants(
    bindings: Iterable[RoleBinding], tenant_id: TenantId, organization_id: OrganizationId
) -> tuple[Grant, ...]:
    """Return what bindings grant in one organization; a role of a later release grants nothing."""
    role_names = {str(role) for role in Role}
    return tuple(
        Grant(
            role=Role(binding.role),
            path_prefix=binding.path_prefix,
            is_everywhere=binding.organization_id == ALL_ORGANIZATIONS,
        )
        for binding in bindings
        if binding.tenant_id == tenant_id
        and binding.organization_id in (organization_id, ALL_ORGANIZATIONS)
        and binding.role in role_names
    )
