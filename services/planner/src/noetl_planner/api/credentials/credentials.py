"""Credentials: sealed on their way in; no answer ever holds a value."""

from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any

from litestar import delete, get, post
from litestar.params import FromPath, JSONBody
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_chassis.seals.credential_seal import SealBroken
from noetl_contracts import codec, spelling
from noetl_contracts.credentials import (
    ALLOWED_PATHS,
    DELETED,
    SealedCredential,
    build_object_name,
    build_object_prefix,
    split_allowed_paths,
)
from noetl_planner.api.credentials import credential_checks
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, Services
from noetl_storage.ports.errors import VersionConflict

NAMES_MAX = 1000
PATHS_MAX = 100
_VERSIONS_TRIED_MAX = 8

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
AllowedPath = Annotated[
    str, Meta(min_length=1, max_length=512, pattern=r"^[^/\x00-\x1f].*[^/]$|^[^/]$")
]
Kind = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]


class PutBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A credential's fields, such as host and password of a database.

    `allowed_paths` are the playbooks, or folders of them, that may use it. An empty list opens it
    to all; without the field they stay as they are, of a new credential all.
    """

    name: Name
    type: Kind
    data: dict[str, Any]
    allowed_paths: Annotated[list[AllowedPath], Meta(max_length=PATHS_MAX)] | None = None


class CredentialView(Struct, frozen=True, kw_only=True):
    """What may be known of a credential: the names of its fields, never their values."""

    name: str
    type: str
    version: int
    key_id: str
    fields: list[str] | None = None
    allowed_paths: list[str] = []


class CredentialList(Struct, frozen=True, kw_only=True):
    """The credentials, by name."""

    credentials: list[CredentialView]


@post("/credentials", status_code=HTTP_200_OK, tags=["credentials"])
async def put(services: Services, data: JSONBody[PutBody]) -> CredentialView:
    """Keep a new version of a credential; workers use it within half a minute."""
    return await keep_credential(services, data)


@get("/credentials", tags=["credentials"])
async def list_credentials(services: Services) -> CredentialList:
    """List the credentials."""
    views = []
    for name in await _list_names(services):
        sealed = await _find_sealed(services, name)
        if sealed is not None:
            views.append(_view_credential(services, sealed))
    return CredentialList(credentials=views)


@get("/credentials/{name:str}", tags=["credentials"])
async def show(services: Services, name: FromPath[str]) -> CredentialView:
    """Show a credential's type, version and field names."""
    return _view_credential(services, await get_sealed(services, name))


@delete("/credentials/{name:str}", status_code=HTTP_200_OK, tags=["credentials"])
async def remove(services: Services, name: FromPath[str]) -> CredentialView:
    """End a credential: its latest version from now on opens to nothing."""
    await get_sealed(services, name)
    ended = await _seal_and_store(services, name=name, kind=DELETED, fields={})
    return _view_credential(services, ended)


async def keep_credential(services: ApiServices, data: PutBody) -> CredentialView:
    """Seal a credential as the next version of its name; raises `ApiError` for what is none."""
    if data.type == DELETED:
        raise problems.build_bad_request_error(
            f"type {DELETED!r} is reserved", hint="noetl credential rm ends a credential"
        )
    kind = credential_checks.get_credential_type(data.type)
    fields = credential_checks.check_credential_fields(kind, data.name, data.data)
    for path in data.allowed_paths or ():
        problems.check_folder(path)
    allowed = data.allowed_paths
    if allowed is None:
        # A new version of the values opens the credential to no other playbooks.
        allowed = await _read_allowed_paths(services, data.name)
    if allowed:
        fields = {**fields, ALLOWED_PATHS: allowed}
    sealed = await _seal_and_store(services, name=data.name, kind=kind.name, fields=fields)
    return _view_credential(services, sealed)


async def _read_allowed_paths(services: ApiServices, name: str) -> list[str]:
    """Return the paths that may use the present version; raises a 409 if nobody can open it."""
    sealed = await _find_sealed(services, name)
    if sealed is None or sealed.kind == DELETED:
        return []
    try:
        opened = services.registry.sealer.open_credential(sealed, **services.tenant_scope)
    except SealBroken as failure:
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="paths_unknown",
            detail=f"which playbooks may use credential {name!r} cannot be read: {failure}",
            hint="name them: --allow-path FOLDER, or --allow-path / for all",
        ) from failure
    return list(split_allowed_paths(opened)[1])


async def _seal_and_store(
    services: ApiServices, *, name: str, kind: str, fields: dict[str, Any]
) -> SealedCredential:
    """Seal and store under the next free version of both stores."""
    place = services.tenant_scope
    latest = await services.registry.credentials.find_credential(name, **place)
    objects = await services.payloads.list_names(build_object_prefix(name), **place)
    last_object = int(max(objects).rpartition("/")[2]) if objects else 0
    version = max(last_object, 0 if latest is None else latest.version)
    for _ in range(_VERSIONS_TRIED_MAX):
        version += 1
        sealed = services.registry.sealer.seal_credential(
            fields, name=name, version=version, kind=kind, **place
        )
        action = "credential.removed" if kind == DELETED else "credential.written"
        try:
            async with services.record_change(action, name, version=version, type=kind):
                await services.registry.credentials.put_credential(sealed, **place)
        except VersionConflict:
            continue
        existing_object = await services.payloads.put_named(
            build_object_name(name, version), codec.encode_json(sealed), **place
        )
        if existing_object is None:
            return sealed
    raise ApiError(
        HTTPStatus.CONFLICT,
        code="credential_contended",
        detail=f"others keep changing credential {name!r}",
        hint="try again",
    )


async def _find_sealed(services: ApiServices, name: str) -> SealedCredential | None:
    sealed = await services.registry.credentials.find_credential(name, **services.tenant_scope)
    return None if sealed is None or sealed.kind == DELETED else sealed


async def get_sealed(services: ApiServices, name: str) -> SealedCredential:
    """Return the latest version of a credential, sealed; raises a 404 that names the nearest."""
    sealed = await _find_sealed(services, name)
    if sealed is None:
        raise problems.build_not_found_error(
            f"there is no credential {name[:128]!r}",
            hint=spelling.suggest_word(name[:128], await _list_names(services))
            or "noetl credential ls",
        )
    return sealed


async def _list_names(services: ApiServices) -> list[str]:
    return await services.registry.credentials.list_credential_names(
        names_max=NAMES_MAX, **services.tenant_scope
    )


def _view_credential(services: ApiServices, sealed: SealedCredential) -> CredentialView:
    """Show a credential; of one that another key sealed, no more than its name."""
    fields: list[str] | None = None
    paths: tuple[str, ...] = ()
    with suppress(SealBroken):
        opened = services.registry.sealer.open_credential(sealed, **services.tenant_scope)
        named, paths = split_allowed_paths(opened)
        fields = sorted(named)
    return CredentialView(
        name=sealed.name,
        type=sealed.kind,
        version=sealed.version,
        key_id=sealed.key_id,
        fields=fields,
        allowed_paths=list(paths),
    )


ROUTES = [put, list_credentials, show, remove]
