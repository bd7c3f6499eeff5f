"""Author access: what somebody may do now, without a token of theirs.

Schedules, webhooks, triggers and rules act for who put them, and child executions for who caused
the first one. Their roles are looked up when something begins.
"""

from msgspec import Struct, structs

from noetl_chassis.clock import Clock
from noetl_contracts.identity import actors
from noetl_contracts.identity.actors import Actor, ActorKind
from noetl_contracts.identity.role_bindings import LOCAL_ISSUER
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.lru_cache import LruCache
from noetl_planner.identity.access_resolver import AccessResolver
from noetl_planner.identity.denials import Denial, DenialLog
from noetl_planner.identity.permissions import Permission
from noetl_planner.identity.principals import Access, Principal
from noetl_storage.ports.identity_ports import Identities

# A role or key that is taken away counts after so long, as it does at the door.
REMEMBERED_S = 5.0
_REMEMBERED_MAX = 2048
# Everybody else is the owner, or a part of the installation, or was asked for nothing.
_HOLDERS = frozenset({ActorKind.PERSON, ActorKind.SERVICE_ACCOUNT})

_Key = tuple[Actor, TenantId, OrganizationId]


class _AuthorRoles(Struct, frozen=True, kw_only=True):
    """The access of an author, why it counts for nothing, and when its groups were seen."""

    access: Access
    lost_key: str = ""
    groups_seen: str = ""


class AuthorAccess:
    """Looks up the roles of authors, and remembers them for seconds."""

    def __init__(
        self,
        identities: Identities,
        resolver: AccessResolver,
        clock: Clock,
        *,
        denials: DenialLog,
    ) -> None:
        self._denials = denials
        self._identities = identities
        self._resolver = resolver
        self._clock = clock
        self._remembered = LruCache[_Key, tuple[_AuthorRoles, float]](entries_max=_REMEMBERED_MAX)

    async def find_fault(
        self,
        actor: Actor | None,
        permission: Permission,
        *,
        path: str | None,
        tenant_id: TenantId,
        organization_id: OrganizationId,
    ) -> str | None:
        """Say why the first cause of an actor may not do something now; None where it may.

        Without a `path` it is about all playbooks. Of whom no event names nothing is known, and
        the owner of the installation has all roles.
        """
        if actor is None:
            return None
        author = actors.get_first_cause(actor)
        if author.kind not in _HOLDERS:
            return None
        roles = await self._get_roles(author, tenant_id, organization_id)
        if roles.lost_key:
            return roles.lost_key
        if roles.access.has_permission(permission, path=path):
            return None
        scope = "for all playbooks" if path is None else f"for {path!r}"
        named = ", ".join(roles.access.list_roles()) or "none"
        return (
            f"{author.short_name} may not {permission} {scope} (roles: {named}{roles.groups_seen})"
        )

    async def record_refusal(
        self,
        actor: Actor,
        action: str,
        reason: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
    ) -> None:
        """Record that something was not begun for want of its author's role."""
        await self._denials.record_denial(
            Denial(
                tenant_id=tenant_id,
                organization_id=organization_id,
                actor=actor,
                route=action,
                reason=reason,
            )
        )

    async def _get_roles(
        self, author: Actor, tenant_id: TenantId, organization_id: OrganizationId
    ) -> _AuthorRoles:
        key = (structs.replace(author, via=None), tenant_id, organization_id)
        now_s = self._clock.monotonic_s()
        remembered = self._remembered.find_value(key)
        if remembered is not None and now_s - remembered[1] < REMEMBERED_S:
            return remembered[0]
        roles = await self._find_roles(author, tenant_id, organization_id)
        self._remembered.keep_value(key, (roles, now_s))
        return roles

    async def _find_roles(
        self, author: Actor, tenant_id: TenantId, organization_id: OrganizationId
    ) -> _AuthorRoles:
        groups: tuple[str, ...] = ()
        groups_text = ""
        if author.issuer != LOCAL_ISSUER:
            person_groups = await self._identities.find_groups(
                issuer=author.issuer, subject=author.id
            )
            groups = () if person_groups is None else person_groups.groups
            groups_text = "; groups of the latest sign-in, " + (
                "none is known"
                if person_groups is None
                else f"{person_groups.seen_at:%Y-%m-%d %H:%M} UTC"
            )
        principal = Principal(
            kind=author.kind,
            id=author.id,
            name=author.name,
            issuer=author.issuer,
            groups=groups,
        )
        access = await self._resolver.find_access(principal, tenant_id, organization_id)
        lost_key = await self._find_lost_key(author)
        return _AuthorRoles(access=access, lost_key=lost_key, groups_seen=groups_text)

    async def _find_lost_key(self, author: Actor) -> str:
        """Say that the key by which something was asked for has been revoked.

        Who had it might not be who it was made for. One whose days are over was good until then.
        """
        if not author.key_prefix:
            return ""
        key = await self._identities.find_key(author.key_prefix)
        if key is not None and key.revoked_at is None:
            return ""
        return f"the API key {author.key_prefix}... of {author.short_name} was revoked"
