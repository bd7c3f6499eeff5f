"""An API with authentication on: keys for every role, in the own and in another organization."""

import itertools
from dataclasses import dataclass
from typing import Any

import httpx
from tests.support import storage
from tests.support.api import ApiWorld

from noetl_chassis.clock import SystemClock
from noetl_contracts.identity.role_bindings import ApiKey, RoleBinding, SubjectKind
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_planner.api.app import create_app
from noetl_planner.identity import authenticator
from noetl_planner.identity.authenticator import Authenticator, digest_token
from noetl_storage.ports.identity_ports import Identities

OWNER_TOKEN = "owner_token-of-the-tests"  # noqa: S105 - opens nothing outside of a test
_NUMBERS = itertools.count(1)
OTHER = (TenantId("other"), OrganizationId("other"))
OWN = (storage.TENANT, storage.ORGANIZATION)


@dataclass(frozen=True)
class Caller:
    """Somebody with a key, or with nothing."""

    name: str
    key: str | None

    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}


NOBODY = Caller("nobody", None)
OWNER = Caller("owner", OWNER_TOKEN)


async def make_caller(
    world: ApiWorld,
    role: str,
    *,
    place: tuple[TenantId, OrganizationId] = OWN,
    path_prefix: str = "",
    name: str | None = None,
) -> Caller:
    """Somebody with a key and one role, for an API over memory."""
    return await make_caller_of(
        world.identities, role, place=place, path_prefix=path_prefix, name=name
    )


async def make_caller_of(
    identities: Identities,
    role: str,
    *,
    place: tuple[TenantId, OrganizationId],
    path_prefix: str = "",
    name: str | None = None,
) -> Caller:
    """Somebody with a key and one role."""
    account = name or f"{role}-{place[0]}{path_prefix.replace('/', '-')}"
    key = authenticator.make_key()
    kind = SubjectKind.WORKER if role == "worker" else SubjectKind.SERVICE_ACCOUNT
    await identities.put_key(
        ApiKey(
            key_prefix=authenticator.find_key_prefix(key) or "",
            tenant_id=place[0],
            organization_id=place[1],
            account=account,
            account_kind=kind,
            digest=authenticator.digest_key(key),
        )
    )
    await identities.put_binding(
        RoleBinding(
            binding_id=str(next(_NUMBERS)),
            tenant_id=place[0],
            organization_id=place[1],
            subject_kind=kind,
            subject=account,
            role=role,
            path_prefix=path_prefix,
        )
    )
    return Caller(account, key)


def make_guarded_app(world: ApiWorld, **changes: Any) -> Any:
    """The API as it is served: nobody comes in without a proof."""
    authenticator = Authenticator(
        world.identities, SystemClock(), owner_digest=digest_token(OWNER_TOKEN)
    )
    return create_app(world.services(authenticator=authenticator, **changes))


def open_client(app: Any, caller: Caller = NOBODY, **headers: str) -> httpx.AsyncClient:
    """A client that shows what a caller has."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url="http://127.0.0.1",
        headers={**caller.headers(), **headers},
    )
