"""Role bindings: who has which role, for all playbooks or those of a folder."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated

from litestar import delete, get, post
from litestar.params import FromPath, JSONBody
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_contracts.identity.role_bindings import (
    ALL_ORGANIZATIONS,
    LOCAL_ISSUER,
    RoleBinding,
    SubjectKind,
)
from noetl_contracts.ids import OrganizationId
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.service_groups import IdentityServices
from noetl_planner.api.http.services import ApiServices, RequestScope, Services
from noetl_planner.api.lookup import execution_lookup
from noetl_planner.identity.permissions import (
    PERMISSIONS_BY_ROLE,
    Permission,
    Role,
    UnknownRole,
    parse_role,
)

BINDINGS_MAX = 1000

Text = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]


class BindingBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A role to give; with a `path_prefix` for the playbooks of that folder alone.

    `all_organizations` gives it in every organization of the tenant.
    """

    kind: SubjectKind
    subject: Text
    role: Text
    issuer: Annotated[str, Meta(max_length=512)] = ""
    path_prefix: Annotated[str, Meta(max_length=512)] = ""
    all_organizations: bool = False


class BindingView(Struct, frozen=True, kw_only=True):
    """A role that somebody has, and who gave it."""

    binding_id: str
    kind: str
    subject: str
    issuer: str
    role: str
    path_prefix: str
    organization: str
    created_by: str
    created_at: datetime | None


class RoleView(Struct, frozen=True, kw_only=True):
    """A role and what it allows."""

    role: str
    permissions: list[str]


class BindingList(Struct, frozen=True, kw_only=True):
    """The roles that there are, and who has them."""

    roles: list[RoleView]
    bindings: list[BindingView]


@get("/roles", tags=["identity"])
async def list_roles(services: Services) -> BindingList:
    """List the roles, and who has which."""
    bindings = await services.identity.identities.list_bindings(
        **services.tenant_scope, bindings_max=BINDINGS_MAX
    )
    return BindingList(
        roles=[
            RoleView(role=role, permissions=sorted(allowed))
            for role, allowed in PERMISSIONS_BY_ROLE.items()
        ],
        bindings=[_view_binding(binding) for binding in bindings],
    )


@post("/roles", status_code=HTTP_200_OK, tags=["identity"])
async def grant_role(services: Services, data: JSONBody[BindingBody]) -> BindingView:
    """Give a role; giving it again changes nothing. It holds within seconds."""
    binding = _build_binding(services, data)
    async with services.record_change(
        "role.granted",
        f"{binding.subject_kind} {binding.subject}",
        role=binding.role,
        path_prefix=binding.path_prefix,
        organization=binding.organization_id,
    ):
        stored_binding = await services.identity.identities.put_binding(binding)
    return _view_binding(stored_binding)


@delete("/roles/{binding_id:str}", status_code=HTTP_200_OK, tags=["identity"])
async def revoke_role(services: Services, binding_id: FromPath[str]) -> BindingView:
    """Take a role away; what it allowed ends within seconds."""
    number = execution_lookup.check_number(binding_id, "the id of a binding")
    async with services.record_change("role.revoked", number) as details:
        binding = await services.identity.identities.remove_binding(
            number,
            **services.tenant_scope,
            has_everywhere=services.access.has_permission_everywhere(Permission.ADMINISTER),
        )
        if binding is None:
            raise problems.build_not_found_error(
                f"organization {services.organization_id!r} has no role binding {number} "
                "of its own",
                hint="noetl role ls lists them; who administers all organizations takes away "
                "those that hold in all",
            )
        details["subject"] = f"{binding.subject_kind} {binding.subject}"
        details["role"] = binding.role
        details["path_prefix"] = binding.path_prefix
    return _view_binding(binding)


def read_path_prefix(text: str, role: Role) -> str:
    """Return the folder that a role holds for; raises a 400 for what is none, and for workers'."""
    path_prefix = text.strip("/")
    if path_prefix:
        problems.check_folder(path_prefix)
        if role is Role.WORKER:
            raise problems.build_bad_request_error(
                "the role worker holds for all playbooks: workers serve pools",
                hint="leave the folder out",
            )
    return path_prefix


def _build_binding(services: ApiServices, body: BindingBody) -> RoleBinding:
    try:
        role = parse_role(body.role)
    except UnknownRole as problem:
        raise problems.build_bad_request_error(str(problem)) from problem
    organization_id = ALL_ORGANIZATIONS if body.all_organizations else services.organization_id
    _check_scope(services, organization_id)
    return RoleBinding(
        binding_id=services.mint(),
        tenant_id=services.tenant_id,
        organization_id=organization_id,
        subject_kind=body.kind,
        issuer=body.issuer or _choose_issuer(services.identity, body.kind),
        subject=body.subject,
        role=role,
        path_prefix=read_path_prefix(body.path_prefix, role),
        created_by=services.actor.short_name,
    )


def _check_scope(scope: RequestScope, organization_id: OrganizationId) -> None:
    """Raise a 403 for who administers one organization, and changes what holds in all of them."""
    if organization_id != ALL_ORGANIZATIONS:
        return
    if not scope.access.has_permission_everywhere(Permission.ADMINISTER):
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            code="forbidden",
            detail=f"{scope.access.principal.name} administers organization "
            f"{scope.organization_id!r} alone, and this role holds in all of the tenant",
            hint="ask who has the role admin in all organizations",
        )


def _choose_issuer(identity: IdentityServices, kind: SubjectKind) -> str:
    """Return who vouches for a subject where the request does not say; raises a 400."""
    if kind in (SubjectKind.SERVICE_ACCOUNT, SubjectKind.WORKER):
        return LOCAL_ISSUER
    if identity.sign_in is None:
        raise problems.build_bad_request_error(
            f"no identity provider is set up that could vouch for a {kind}",
            hint="set NOETL_PLANNER_OIDC_ISSUER, or name the issuer: --issuer",
        )
    return identity.sign_in.config.issuer


def _view_binding(binding: RoleBinding) -> BindingView:
    return BindingView(
        binding_id=binding.binding_id,
        kind=binding.subject_kind,
        subject=binding.subject,
        issuer=binding.issuer,
        role=binding.role,
        path_prefix=binding.path_prefix,
        organization=binding.organization_id,
        created_by=binding.created_by,
        created_at=binding.created_at,
    )


ROUTES = [list_roles, grant_role, revoke_role]
