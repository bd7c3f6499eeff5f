"""What API handlers use: the access of who asks, and one group of services for each noun."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, TypedDict

from litestar.di import NamedDependency
from litestar.params import SkipValidation
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_contracts.commands.worker_pools import Pools
from noetl_contracts.identity.actors import Actor, ActorKind
from noetl_contracts.identity.administration import TARGET_CHARACTERS_MAX, NewRecord
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.service_groups import (
    AdmissionLimits,
    HistoryStores,
    IdentityServices,
    MessageServices,
    PlaybookServices,
    RegistryStores,
    ShardServices,
)
from noetl_planner.domain.decision.draft import Limits
from noetl_planner.identity.permissions import Permission
from noetl_planner.identity.principals import Access
from noetl_storage.ports.ledger_ports import Payloads
from noetl_storage.ports.payload_ports import PayloadTier

# Where the application keeps what a request may touch, and a request what it may.
SERVICES = "services"
BOUND_SERVICES = "noetl.services"
GATE = "noetl.gate"


class TenantScope(TypedDict):
    """Whose things they are, as keyword arguments of the ports."""

    tenant_id: TenantId
    organization_id: OrganizationId


class RequestScope(Struct, frozen=True, kw_only=True):
    """Who asks, in which organization, and what of it is in reach.

    A request gets it bound to the `access` of who sends it, and to that organization. Where its
    roles hold for some folders of playbooks alone, these are `path_prefixes`.
    """

    access: Access
    tenant_id: TenantId
    organization_id: OrganizationId
    path_prefixes: tuple[str, ...] = ()
    # What the request asks for, where roles hold for these folders alone.
    permission: Permission | None = None
    # Whether it is the organization of the installation, which sees what is nobody's.
    is_own_installation: bool = True
    # Whether nothing is kept of the tenant or organization yet; only the owner comes so far.
    is_new_place: bool = False
    # What acts instead of the principal: a webhook or a trigger.
    acting: Actor | None = None

    @property
    def tenant_scope(self) -> TenantScope:
        """Say whose things this API serves."""
        return TenantScope(tenant_id=self.tenant_id, organization_id=self.organization_id)

    @property
    def actor(self) -> Actor:
        """Return who asks, as events name it."""
        return self.acting or self.access.principal.build_actor()

    @property
    def sees_all_tenants(self) -> bool:
        """Tell whether who asks administers the installation, and not one tenant of it."""
        return self.is_own_installation and self.access.has_permission_everywhere(
            Permission.ADMINISTER
        )

    def name_asker(self, asker: str) -> str:
        """Return the name of who asks; what a client says counts where nobody is proved."""
        principal = self.access.principal
        return asker if principal.kind is ActorKind.ANONYMOUS else principal.name

    def covers_path(self, path: str) -> bool:
        """Tell whether a playbook's path lies where this request's roles hold."""
        return not self.path_prefixes or any(
            path == prefix or path.startswith(f"{prefix}/") for prefix in self.path_prefixes
        )

    def check_path(self, path: str, label: str) -> None:
        """Raise a 404 for a playbook out of reach: that it is there is not told.

        It is a 403 for who sees the playbook, and may not do this to it.
        """
        self.check_seen_path(path)
        if not self.covers_path(path):
            raise problems.build_not_found_error(f"there is no {label}")

    def check_seen_path(self, path: str) -> None:
        """Raise a 403 for a playbook that who asks sees, and may not do this to."""
        if self.permission is not None and not self.covers_path(path) and self.sees_path(path):
            raise build_forbidden_error(self.access, self.permission, path=path)

    def sees_path(self, path: str) -> bool:
        """Tell whether who asks sees a playbook, also where this request may do nothing to it."""
        return self.covers_path(path) or self.has_permission(Permission.SEE, path)

    def check_replaced(self, path: str | None, label: str) -> None:
        """Raise a 409 for a name whose present owner is a playbook out of reach; None: nobody's."""
        if path is not None and not self.covers_path(path):
            raise problems.build_name_taken_error(label)

    def has_permission(self, permission: Permission, path: str) -> bool:
        """Tell whether who asks may do something else to a playbook."""
        return self.access.has_permission(permission, path=path)


class ApiServices(RequestScope, frozen=True, kw_only=True):
    """What a handler may use: the scope of its request, and one group for each noun.

    `stop` ends live streams when the process drains.
    """

    identity: IdentityServices
    history: HistoryStores
    playbooks: PlaybookServices
    registry: RegistryStores
    messages: MessageServices
    shards: ShardServices
    admission: AdmissionLimits
    payloads: Payloads
    # What kind of place the store of payloads is.
    store_tier: PayloadTier
    clock: Clock
    mint: Callable[[], str]
    list_problems: Callable[[], Awaitable[dict[str, str]]]
    stop: asyncio.Event
    # Names by which this API may be called besides those that are private by themselves.
    http_hosts: tuple[str, ...] = ()
    limits: Limits = Limits()

    @property
    def tools(self) -> tuple[str, ...]:
        """Return the tool kinds that run here; none named: all that this release has."""
        return self.limits.tools

    @property
    def pools(self) -> Pools:
        """Return the pools of the deployment."""
        return self.limits.pools

    @property
    def routes(self) -> IngestRoutes:
        """Return where facts about executions are published."""
        return IngestRoutes(shard_count=self.shards.shard_count, tenants=self.limits.tenants)

    def check_served(self, tenant: str) -> None:
        """Raise a 421 for a tenant that another installation serves, with its address."""
        served = self.identity.served_tenants
        if not served.is_served(TenantId(tenant)):
            raise problems.MisdirectedTenantError(
                tenant, url=served.url_by_tenant.get(tenant), only=served.only
            )

    async def has_tenant(self, tenant_id: TenantId) -> bool:
        """Tell whether there is a tenant: this one, one of the settings, or one with anything."""
        is_named = tenant_id == self.tenant_id or tenant_id in self.limits.tenants
        return is_named or await self.identity.identities.has_tenant(tenant_id)

    async def has_place(self, tenant_id: TenantId, organization_id: OrganizationId) -> bool:
        """Tell whether there is a tenant, and an organization of it with anything.

        Every tenant has an organization that is named as this one, which requests need not name.
        """
        if not await self.has_tenant(tenant_id):
            return False
        is_usual = organization_id == self.organization_id
        return is_usual or await self.identity.identities.has_organization(
            tenant_id, organization_id
        )

    async def find_author_fault(self, actor: Actor | None, path: str | None) -> str | None:
        """Say why who has put something to start a playbook may not any more; None: who has may.

        Without a `path` it is about all playbooks.
        """
        return await self.identity.authors.find_fault(
            actor, Permission.WRITE_PLAYBOOKS, path=path, **self.tenant_scope
        )

    async def check_author(self, actor: Actor | None, path: str, label: str) -> None:
        """Raise a 403, and record it, when who has put what starts a playbook may not any more."""
        fault = await self.find_author_fault(actor, path)
        if fault is None:
            return
        await self.identity.authors.record_refusal(
            self.actor, f"start of {path}", fault, **self.tenant_scope
        )
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            code="author_refused",
            detail=f"{label} may not start playbook {path!r}: {fault}",
            hint="somebody who may takes it over by putting it again",
        )

    @asynccontextmanager
    async def record_change(
        self, action: str, target: str, **details: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Store what the block stores together with a record of who did it, or neither.

        The block may add to the details that it is given. No tasks may be started within. Changes
        of an organization happen one after another: what the block looks up is so when it stores.
        """
        async with self.identity.administration.open_change():
            await self.identity.administration.hold_stream(**self.tenant_scope)
            yield details
            await self.identity.administration.append_record(
                NewRecord(
                    **self.tenant_scope,
                    event_time=self.clock.now(),
                    action=action,
                    target=target[:TARGET_CHARACTERS_MAX],
                    actor=self.actor,
                    details=details,
                )
            )


def build_forbidden_error(
    access: Access, permission: Permission, *, path: str | None = None
) -> ApiError:
    """Say which permission is missing, of a playbook where one is named, and who gives it."""
    roles = ", ".join(access.list_roles()) or "none"
    place = "here" if path is None else f"at {path[:200]!r}"
    return ApiError(
        HTTPStatus.FORBIDDEN,
        code="forbidden",
        detail=f"{access.principal.name} may not {permission} {place} (roles: {roles})",
        hint="an administrator gives roles: noetl role grant",
    )


# Ports are protocols, which request validation could not look into.
Services = NamedDependency[SkipValidation[ApiServices]]
