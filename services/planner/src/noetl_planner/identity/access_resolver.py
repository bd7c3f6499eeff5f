"""The access resolver: in which organization a principal acts, and with which roles."""

from collections.abc import Mapping
from datetime import UTC, datetime

from noetl_contracts.identity.actors import ActorKind
from noetl_contracts.identity.role_bindings import ALL_ORGANIZATIONS, RoleBinding, SubjectKind
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_planner.identity.permissions import Role
from noetl_planner.identity.principals import (
    ALL_GRANTS,
    Access,
    Grant,
    Principal,
    select_grants,
)
from noetl_storage.ports.identity_ports import Identities, SubjectNames

_Owner = tuple[TenantId, OrganizationId]


class NoRole(Exception):  # noqa: N818 - it is an answer
    """A principal has no role where it wants to act, or does not say where."""

    def __init__(
        self, code: str, detail: str, hint: str, *, principal: Principal | None = None
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint
        self.principal = principal


class AccessResolver:
    """Reads bindings, and the roles that the settings give to groups of the provider.

    Roles of settings hold in the organization of the installation, which is there before anybody
    could bind a role, for groups of the `group_issuer` alone.
    """

    def __init__(
        self,
        identities: Identities,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        role_by_group: Mapping[str, Role] | None = None,
        group_issuer: str = "",
    ) -> None:
        self._identities = identities
        self._home = (tenant_id, organization_id)
        self._role_by_group = dict(role_by_group or {})
        self._group_issuer = group_issuer

    async def resolve_access(
        self, principal: Principal, *, tenant: str | None, organization: str | None
    ) -> Access:
        """Return what a principal may do where it wants to act; raises `NoRole`."""
        if principal.has_all_roles:
            return self._build_owner_access(principal, tenant, organization)
        bindings = self._add_settings(
            principal,
            await self._find_bindings(principal)
            if principal.bindings is None
            else list(principal.bindings),
        )
        owner = self._choose_owner(principal, bindings, tenant, organization)
        grants = select_grants(bindings, *owner)
        if not grants:
            raise _build_no_role_error(principal, tenant, organization)
        return Access(
            principal=principal, tenant_id=owner[0], organization_id=owner[1], grants=grants
        )

    async def find_access(
        self, principal: Principal, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Access:
        """Return what a principal may do in an organization, be it nothing.

        It is asked of authors, who send no token: of a schedule, a webhook, a parent execution.
        """
        bindings = self._add_settings(principal, await self._find_bindings(principal))
        return Access(
            principal=principal,
            tenant_id=tenant_id,
            organization_id=organization_id,
            grants=select_grants(bindings, tenant_id, organization_id),
        )

    async def _find_bindings(self, principal: Principal) -> list[RoleBinding]:
        names = SubjectNames(
            kind=_SUBJECTS[principal.kind],
            subject=principal.id,
            issuer=principal.issuer,
            groups=principal.groups,
        )
        return await self._identities.find_bindings(names)

    def _add_settings(self, principal: Principal, bindings: list[RoleBinding]) -> list[RoleBinding]:
        """Add what the settings give to groups; leave what a key does not open."""
        bindings += [
            RoleBinding(
                binding_id="0",
                tenant_id=self._home[0],
                organization_id=self._home[1],
                subject_kind=SubjectKind.GROUP,
                subject=group,
                role=self._role_by_group[group],
            )
            for group in principal.groups
            if group in self._role_by_group and principal.issuer == self._group_issuer
        ]
        if principal.home is None:
            return bindings
        # A key opens the organization that it was made in alone.
        home_tenant, home_organization = principal.home
        return [
            binding
            for binding in bindings
            if binding.tenant_id == home_tenant
            and binding.organization_id in (home_organization, ALL_ORGANIZATIONS)
        ]

    def _choose_owner(
        self,
        principal: Principal,
        bindings: list[RoleBinding],
        tenant: str | None,
        organization: str | None,
    ) -> _Owner:
        if principal.home is not None:
            chosen = (
                TenantId(tenant or principal.home[0]),
                OrganizationId(organization or principal.home[1]),
            )
            if chosen != principal.home:
                raise _build_no_role_error(principal, tenant, organization)
            return chosen
        owners = {(binding.tenant_id, binding.organization_id) for binding in bindings}
        named = {
            owner
            for owner in owners
            if tenant in (None, owner[0])
            and (organization is None or owner[1] in (organization, ALL_ORGANIZATIONS))
        }
        if not named:
            raise _build_no_role_error(principal, tenant, organization)
        # The one where a role was given first, so that nobody's later binding leads elsewhere.
        chosen_tenant, chosen_organization = min(
            (_rank_binding(binding), (binding.tenant_id, binding.organization_id))
            for binding in bindings
            if (binding.tenant_id, binding.organization_id) in named
        )[1]
        if chosen_organization != ALL_ORGANIZATIONS:
            return chosen_tenant, chosen_organization
        return chosen_tenant, OrganizationId(organization or self._home[1])

    def _build_owner_access(
        self, principal: Principal, tenant: str | None, organization: str | None
    ) -> Access:
        if principal.kind == ActorKind.ANONYMOUS:
            self._check_own_place(tenant, organization)
        return Access(
            principal=principal,
            tenant_id=TenantId(tenant or self._home[0]),
            organization_id=OrganizationId(organization or self._home[1]),
            grants=(*ALL_GRANTS, Grant(role=Role.WORKER)),
        )

    def _check_own_place(self, tenant: str | None, organization: str | None) -> None:
        """Keep who proved nothing in the installation's own organization; raises `NoRole`."""
        own_tenant, own_organization = self._home
        if tenant in {None, own_tenant} and organization in {None, own_organization}:
            return
        raise NoRole(
            "authentication_off",
            f"authentication is off: everybody acts in tenant {own_tenant!r} and organization "
            f"{own_organization!r}, and no other is to be had",
            "leave the tenant and the organization out, or begin with an owner's token: "
            "noetl key owner",
        )


_SUBJECTS = {
    ActorKind.PERSON: SubjectKind.PERSON,
    ActorKind.SERVICE_ACCOUNT: SubjectKind.SERVICE_ACCOUNT,
    ActorKind.WORKER: SubjectKind.WORKER,
}


def _rank_binding(binding: RoleBinding) -> tuple[datetime, int]:
    """Order bindings by age; what the settings give was there before anybody could bind a role."""
    return binding.created_at or datetime.min.replace(tzinfo=UTC), int(binding.binding_id)


def _build_no_role_error(
    principal: Principal, tenant: str | None, organization: str | None
) -> NoRole:
    """Say where a principal has no role, by the names that it gave.

    No tenant is looked up for it: one that does not exist is answered as one of others.
    """
    named = [
        f"{noun} {name[:80]!r}"
        for noun, name in (("tenant", tenant), ("organization", organization))
        if name is not None
    ]
    return NoRole(
        "no_role",
        f"{principal.name} has no role in {', '.join(named) or 'any tenant'}",
        "an administrator gives roles: noetl role grant",
        principal=principal,
    )
