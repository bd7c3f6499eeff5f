"""API keys of service accounts and workers: shown once, kept as hashes."""

from datetime import datetime, timedelta
from typing import Annotated

from litestar import delete, get, post
from litestar.params import FromPath, JSONBody
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_contracts import subjects
from noetl_contracts.identity.actors import Actor
from noetl_contracts.identity.role_bindings import LOCAL_ISSUER, ApiKey, RoleBinding, SubjectKind
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import NAME_PATTERN
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.identity import roles
from noetl_planner.identity import authenticator
from noetl_planner.identity.permissions import Role, UnknownRole, parse_role

KEYS_MAX = 1000
DAYS_DEFAULT = 90
DAYS_MAX = 3650


class KeyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to make: for which account, with which role, for how many days; 0 days: without end.

    The role is given to the account, which may have others. A key of a worker has its own.
    """

    account: Annotated[str, Meta(pattern=NAME_PATTERN)]
    role: Annotated[str, Meta(max_length=64)] | None = None
    path_prefix: Annotated[str, Meta(max_length=512)] = ""
    days: Annotated[int, Meta(ge=0, le=DAYS_MAX)] = DAYS_DEFAULT
    worker: bool = False


class KeyView(Struct, frozen=True, kw_only=True):
    """What is known of a key: never the key."""

    key_prefix: str
    account: str
    kind: str
    created_by: str
    created_at: datetime | None
    expires_at: datetime | None
    used_at: datetime | None
    revoked_at: datetime | None


class NewKey(Struct, frozen=True, kw_only=True):
    """A key that was made; nobody can show it again."""

    key: str
    key_prefix: str
    account: str
    expires_at: datetime | None


class KeyList(Struct, frozen=True, kw_only=True):
    """The API keys, by account."""

    keys: list[KeyView]


@get("/keys", tags=["identity"])
async def list_keys(services: Services) -> KeyList:
    """List the API keys."""
    keys = await services.identity.identities.list_keys(**services.tenant_scope, keys_max=KEYS_MAX)
    return KeyList(keys=[_view_key(key) for key in keys])


@post("/keys", status_code=HTTP_200_OK, tags=["identity"])
async def create_key(services: Services, data: JSONBody[KeyBody]) -> NewKey:
    """Make an API key; the answer is the only place that shows it."""
    role = _choose_role(data)
    if data.worker and not subjects.is_subject_token(data.account):
        raise problems.build_bad_request_error(
            f"{data.account!r} is no worker's name",
            hint="use 1 to 64 letters, digits, '_' or '-'",
        )
    key = authenticator.make_key()
    kind = SubjectKind.WORKER if data.worker else SubjectKind.SERVICE_ACCOUNT
    now = services.clock.now()
    api_key = ApiKey(
        key_prefix=authenticator.find_key_prefix(key) or "",
        **services.tenant_scope,
        account=data.account,
        account_kind=kind,
        digest=authenticator.digest_key(key),
        created_by=services.actor.short_name,
        maker=await _find_first_maker(services),
        expires_at=now + timedelta(days=data.days) if data.days else None,
    )
    async with services.record_change(
        "key.created", api_key.key_prefix, account=data.account, role=role
    ):
        await services.identity.identities.put_key(api_key)
        if role is not None:
            await services.identity.identities.put_binding(
                _build_binding(services, data, kind, role)
            )
    return NewKey(
        key=key,
        key_prefix=api_key.key_prefix,
        account=data.account,
        expires_at=api_key.expires_at,
    )


@delete("/keys/{key_prefix:str}", status_code=HTTP_200_OK, tags=["identity"])
async def revoke_key(services: Services, key_prefix: FromPath[str]) -> KeyView:
    """Revoke a key; what it opened ends within seconds."""
    async with services.record_change("key.revoked", key_prefix[:100]):
        if not await services.identity.identities.revoke_key(key_prefix, **services.tenant_scope):
            raise problems.build_not_found_error(
                f"there is no key {key_prefix[:100]!r} that opens anything",
                hint="noetl key ls lists them",
            )
    key = await services.identity.identities.find_key(key_prefix)
    assert key is not None, "a revoked key stays in the list"
    return _view_key(key)


def _choose_role(body: KeyBody) -> Role | None:
    if body.worker:
        if body.role not in (None, Role.WORKER):
            raise problems.build_bad_request_error(
                "a worker's key has the role worker", hint="leave `role` out"
            )
        return Role.WORKER
    if body.role is None:
        if body.path_prefix:
            raise problems.build_bad_request_error(
                "a folder is named, and no role that would hold for it", hint="name a role"
            )
        return None
    try:
        return parse_role(body.role)
    except UnknownRole as problem:
        raise problems.build_bad_request_error(str(problem)) from problem


def _build_binding(
    services: ApiServices, body: KeyBody, kind: SubjectKind, role: Role
) -> RoleBinding:
    return RoleBinding(
        binding_id=services.mint(),
        **services.tenant_scope,
        subject_kind=kind,
        issuer=LOCAL_ISSUER,
        subject=body.account,
        role=role,
        path_prefix=roles.read_path_prefix(body.path_prefix, role),
        created_by=services.actor.short_name,
    )


async def _find_first_maker(services: ApiServices) -> Actor:
    """Return who is behind a new key, as far as that never changes.

    A key that a key makes is of who made the first one: else nobody could see who has both.
    """
    actor = services.actor
    own_key = (
        await services.identity.identities.find_key(actor.key_prefix) if actor.key_prefix else None
    )
    if own_key is not None and own_key.maker is not None:
        return own_key.maker
    return Actor(kind=actor.kind, issuer=actor.issuer, id=actor.id)


def _view_key(key: ApiKey) -> KeyView:
    return KeyView(
        key_prefix=key.key_prefix,
        account=key.account,
        kind=key.account_kind,
        created_by=key.created_by,
        created_at=key.created_at,
        expires_at=key.expires_at,
        used_at=key.used_at,
        revoked_at=key.revoked_at,
    )


ROUTES = [list_keys, create_key, revoke_key]
