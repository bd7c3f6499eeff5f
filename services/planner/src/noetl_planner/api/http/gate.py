"""The gate: admits each request of the API with the access that it has, or refuses it."""

from http import HTTPStatus
from time import monotonic

import structlog
from litestar.types import HTTPScope
from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.errors import Retryable
from noetl_contracts.identity.actors import Actor, ActorKind, Via
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.lru_cache import LruCache
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError, MisdirectedTenantError
from noetl_planner.api.http.services import ApiServices, build_forbidden_error
from noetl_planner.identity import denials, route_rules
from noetl_planner.identity.access_resolver import NoRole
from noetl_planner.identity.authenticator import Evidence, NotSignedIn
from noetl_planner.identity.denials import Denial
from noetl_planner.identity.permissions import Permission
from noetl_planner.identity.principals import Access, Principal
from noetl_planner.identity.route_rules import AccessKind, Reach, RouteRule

# How long what a token opened is remembered: a revoked key or role ends after so long.
REMEMBERED_S = 5.0
_REMEMBERED_MAX = 2048
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_AUTHORIZATION, _COOKIE = b"authorization", b"cookie"
_TENANT, _ORGANIZATION = b"x-noetl-tenant", b"x-noetl-organization"
_CLIENT, _CSRF = b"x-noetl-client", b"x-csrf-token"
_HEADERS = frozenset({_AUTHORIZATION, _COOKIE, _TENANT, _ORGANIZATION, _CLIENT, _CSRF})
_VIA = {b"cli": Via.CLI, b"console": Via.CONSOLE}
_NAME_CHARACTERS_MAX = 256

log = structlog.get_logger(__name__)

# Digests of tokens and not the tokens, which may be long, and are nobody's to find in memory. Of a
# session it is the principal: its cookie, and its token against forged requests, are checked with
# each request, and its roles are remembered.
_Key = tuple[bytes | Principal, bytes, bytes, Via]


class _Remembered(Struct, frozen=True):
    services: ApiServices
    until: float


class Gate:
    """Checks requests by the table of routes; remembers for seconds what each token opens."""

    def __init__(self, services: ApiServices) -> None:
        self._services = services
        self._remembered = LruCache[_Key, _Remembered](entries_max=_REMEMBERED_MAX)
        self._denials = denials.DenialLog(services.identity.administration, services.clock)

    async def admit_request(self, scope: HTTPScope, *, is_counted: bool = True) -> ApiServices:
        """Return what a request may use, bound to who sends it; raises `ApiError`.

        One that was admitted before, and goes on, is not counted again.
        """
        method, path = scope["method"], scope["path_template"]
        rule = route_rules.find_rule("GET" if method == "HEAD" else method, path)
        if rule is None:
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                code="no_rule",
                detail=f"no rule says who may call {method} {path}",
            )
        headers = {name: value for name, value in scope["headers"] if name in _HEADERS}
        if rule.access_kind is AccessKind.PUBLIC:
            return await self._admit_anybody(headers)
        services = await self._find_services(
            method, path, headers, _get_address(scope), rule.access_kind
        )
        access = services.access
        if services.is_new_place:
            await self._check_new_place(access, method, path)
        if is_counted:
            services.admission.rate_limiter.admit_call(access.principal)
        if is_counted and access.grants:
            await services.admission.quota_board.admit_call(access.tenant_id, access.principal)
        if rule.permission is None:
            return services
        return await self._check_rule(services, access, rule, rule.permission, method, path)

    async def record_refusal(self, scope: HTTPScope, services: ApiServices) -> None:
        """Record that a handler has refused what the gate had admitted."""
        route = f"{scope['method']} {scope['path_template']}"
        if services.access.principal is NOBODY:
            await self._record_unknown(_get_address(scope), route, "refused for this request")
            return
        await self._record_denial(
            services.access.principal.build_actor(),
            services.access,
            route,
            "refused for this path or request",
        )

    async def _check_rule(
        self,
        services: ApiServices,
        access: Access,
        rule: RouteRule,
        permission: Permission,
        method: str,
        path: str,
    ) -> ApiServices:
        if access.has_permission(permission):
            return services
        if rule.reach is Reach.PATHS and access.has_permission_somewhere(permission):
            return structs.replace(
                services,
                path_prefixes=access.list_path_prefixes(permission),
                permission=permission,
            )
        await self._record_denial(
            access.principal.build_actor(), access, f"{method} {path}", str(permission)
        )
        raise build_forbidden_error(access, permission)

    async def _find_services(
        self,
        method: str,
        path: str,
        headers: dict[bytes, bytes],
        address: str,
        access_kind: AccessKind,
    ) -> ApiServices:
        try:
            return await self._find_bound_services(method, headers)
        except NotSignedIn as refusal:
            await self._record_unknown(address, f"{method} {path}", refusal.code)
            raise _build_unauthorized_error(refusal) from refusal
        except NoRole as refusal:
            if access_kind is AccessKind.SIGNED_IN and not headers.keys() & {
                _TENANT,
                _ORGANIZATION,
            }:
                return self._bind_roleless(refusal)
            await self._record_no_role(refusal, f"{method} {path}")
            raise _build_forbidden_place_error(refusal) from refusal

    async def _find_bound_services(self, method: str, headers: dict[bytes, bytes]) -> ApiServices:
        """Return what a request may use, as remembered or looked up; it may be refused."""
        token = headers.get(_AUTHORIZATION, b"")
        place = headers.get(_TENANT, b""), headers.get(_ORGANIZATION, b"")
        via = _VIA.get(headers.get(_CLIENT, b""), Via.API)
        is_session = not token and _COOKIE in headers
        principal = await self._find_principal(method, headers) if is_session else None
        key = (principal or codec.digest_bytes(token), *place, via)
        remembered = self._remembered.find_value(key)
        if remembered is not None and remembered.until > monotonic():
            return remembered.services
        services = await self._bind_principal(
            principal or await self._find_principal(method, headers), headers
        )
        # That there is no such place may be over with the next request.
        if not services.is_new_place:
            self._remember_services(key, services)
        return services

    async def _bind_services(self, method: str, headers: dict[bytes, bytes]) -> ApiServices:
        return await self._bind_principal(await self._find_principal(method, headers), headers)

    async def _find_principal(self, method: str, headers: dict[bytes, bytes]) -> Principal:
        evidence = _read_evidence(method, headers)
        principal = await self._services.identity.authenticator.authenticate_request(evidence)
        if principal is None:
            raise NotSignedIn(
                "not_signed_in",
                "this needs a token, an API key or a session",
                "sign in with noetl login, or send Authorization: Bearer TOKEN with an API key "
                "or the owner's token",
            )
        return principal

    async def _bind_principal(
        self, principal: Principal, headers: dict[bytes, bytes]
    ) -> ApiServices:
        tenant = _read_name(headers, _TENANT)
        if tenant is not None and principal.home is None:
            # Roles there are kept there: people who signed in learn the address, and no more.
            self._services.check_served(tenant)
        access = await self._services.identity.access_resolver.resolve_access(
            principal, tenant=tenant, organization=_read_name(headers, _ORGANIZATION)
        )
        self._services.check_served(access.tenant_id)
        services = bind_services(self._services, access)
        is_new = principal.has_all_roles and not await self._services.has_place(
            access.tenant_id, access.organization_id
        )
        return structs.replace(services, is_new_place=True) if is_new else services

    def _bind_roleless(self, refusal: NoRole) -> ApiServices:
        """Bind what needs no role, for somebody who named no place and has a role in none."""
        assert refusal.principal is not None, "a place that is not named is not misspelled"
        tenant_id, organization_id = refusal.principal.home or (TenantId(""), OrganizationId(""))
        access = Access(
            principal=refusal.principal, tenant_id=tenant_id, organization_id=organization_id
        )
        return bind_services(self._services, access)

    async def _check_new_place(self, access: Access, method: str, path: str) -> None:
        """Let only what a tenant or organization begins with into one that keeps nothing."""
        if (method, path) in route_rules.MAKING_TENANTS:
            problems.check_tenant_name(access.tenant_id)
            return
        if await self._services.has_tenant(access.tenant_id):
            raise problems.build_no_organization_error(access.tenant_id, access.organization_id)
        raise problems.build_no_tenant_error(access.tenant_id)

    def _remember_services(self, key: _Key, services: ApiServices) -> None:
        until = monotonic() + REMEMBERED_S
        expires_at = services.access.principal.expires_at
        if expires_at is not None:
            left_s = (expires_at - self._services.clock.now()).total_seconds()
            until = min(until, monotonic() + left_s)
        self._remembered.keep_value(key, _Remembered(services, until))

    async def _admit_anybody(self, headers: dict[bytes, bytes]) -> ApiServices:
        """Bind what a public route uses: a token that is no good makes nobody of its sender."""
        if (
            headers.keys() & {_AUTHORIZATION, _COOKIE}
            or self._services.identity.authenticator.is_off
        ):
            try:
                return await self._bind_services("GET", headers)
            except (NotSignedIn, NoRole, MisdirectedTenantError):
                log.debug("sender of a public request is unknown")
        tenant, organization = _read_name(headers, _TENANT), _read_name(headers, _ORGANIZATION)
        nobody = Access(
            principal=NOBODY,
            tenant_id=TenantId(tenant) if tenant else self._services.tenant_id,
            organization_id=(
                OrganizationId(organization) if organization else self._services.organization_id
            ),
        )
        return bind_services(self._services, nobody)

    async def _record_unknown(self, address: str, route: str, reason: str) -> None:
        services = self._services
        actor = Actor(kind=ActorKind.ANONYMOUS, id=address, name=address, via=Via.API)
        nowhere = Access(
            principal=NOBODY,
            tenant_id=services.tenant_id,
            organization_id=services.organization_id,
        )
        await self._record_denial(actor, nowhere, route, reason)

    async def _record_no_role(self, refusal: NoRole, route: str) -> None:
        """Record it where a key is at home, else for the installation: not where it was tried."""
        principal = refusal.principal
        if principal is None:
            return
        services = self._services
        tenant_id, organization_id = principal.home or (
            services.tenant_id,
            services.organization_id,
        )
        place = Access(principal=principal, tenant_id=tenant_id, organization_id=organization_id)
        await self._record_denial(principal.build_actor(), place, route, refusal.code)

    async def _record_denial(self, actor: Actor, access: Access, route: str, reason: str) -> None:
        try:
            await self._denials.record_denial(
                Denial(
                    tenant_id=access.tenant_id,
                    organization_id=access.organization_id,
                    actor=actor,
                    route=route,
                    reason=reason,
                )
            )
        except Retryable as failure:
            # The refusal stands whether or not it could be written down.
            log.warning("denial not recorded", route=route, reason=str(failure))


NOBODY = Principal(kind=ActorKind.ANONYMOUS, id="", name="nobody")


def bind_services(services: ApiServices, access: Access) -> ApiServices:
    """Return what one principal may use in one organization."""
    return structs.replace(
        services,
        access=access,
        tenant_id=access.tenant_id,
        organization_id=access.organization_id,
        is_own_installation=(access.tenant_id, access.organization_id)
        == (services.tenant_id, services.organization_id),
    )


def _build_unauthorized_error(refusal: NotSignedIn) -> ApiError:
    return ApiError(
        HTTPStatus.FORBIDDEN if refusal.is_forbidden else HTTPStatus.UNAUTHORIZED,
        code=refusal.code,
        detail=refusal.detail,
        hint=refusal.hint,
        headers={"WWW-Authenticate": 'Bearer realm="noetl"'},
    )


def _build_forbidden_place_error(refusal: NoRole) -> ApiError:
    return ApiError(
        HTTPStatus.FORBIDDEN, code=refusal.code, detail=refusal.detail, hint=refusal.hint
    )


def _read_evidence(method: str, headers: dict[bytes, bytes]) -> Evidence:
    csrf = None if method in _READS else headers.get(_CSRF, b"").decode("latin-1")
    return Evidence(
        authorization=headers.get(_AUTHORIZATION, b"").decode("latin-1"),
        cookies=headers.get(_COOKIE, b"").decode("latin-1"),
        csrf_token=csrf,
        via=_VIA.get(headers.get(_CLIENT, b""), Via.API),
    )


def _read_name(headers: dict[bytes, bytes], header: bytes) -> str | None:
    name = headers.get(header, b"").decode("latin-1").strip()
    if len(name) > _NAME_CHARACTERS_MAX or not name.isprintable():
        raise NoRole(
            "no_role",
            f"{header.decode()} names nothing: it has at most {_NAME_CHARACTERS_MAX} characters",
            "write the name of a tenant or organization",
        )
    return name or None


def _get_address(scope: HTTPScope) -> str:
    client = scope.get("client")
    return client[0] if client else ""
