"""Credentials by name: opened here, remembered for a moment, never passed on."""

from typing import Any, Protocol

from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_chassis.sealing import SealBroken, Sealer
from noetl_contracts import codec
from noetl_contracts.credentials import SealedCredential, object_prefix
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.masking import Mask
from noetl_worker.domain.sites import Site

REMEMBERED_S = 30.0
_REMEMBERED_MAX = 1024


class Credential(Struct, frozen=True, kw_only=True):
    """An opened credential; `version` changes whenever its fields may have."""

    name: str
    kind: str
    version: int
    fields: dict[str, Any]


class NamedObjects(Protocol):
    """The part of the payload store that keeps sealed credentials."""

    async def find_named(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Return an object by name, or None."""

    async def list_names(
        self, prefix: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> list[str]:
        """Return the names under a prefix, in order."""


class Vault:
    """Opens sealed credentials with the deployment's key."""

    def __init__(self, *, objects: NamedObjects, sealer: Sealer, mask: Mask, clock: Clock) -> None:
        self._objects = objects
        self._sealer = sealer
        self._mask = mask
        self._clock = clock
        self._remembered: dict[tuple[str, str, str], tuple[float, Credential]] = {}

    async def resolve(self, auth: Any, site: Site) -> Credential:
        """Return the credential that `auth` means; raises `ToolFailure`."""
        if isinstance(auth, dict):
            if "type" in auth:
                self._mask.learn({key: auth[key] for key in auth if key != "type"})
                return Credential(name="(inline)", kind=str(auth["type"]), version=0, fields=auth)
            name = auth.get("credential") or auth.get("key")
            if name is None and len(auth) == 1:
                return await self.resolve(next(iter(auth.values())), site)
            auth = name
        if not isinstance(auth, str) or not auth:
            raise ToolFailure(failure("config", f"auth must name a credential, not {auth!r}"))
        return await self._named(auth, site)

    async def _named(self, name: str, site: Site) -> Credential:
        key = (site.tenant_id, site.organization_id, name)
        found = self._remembered.get(key)
        now = self._clock.monotonic()
        if found is not None and now - found[0] < REMEMBERED_S:
            return found[1]
        opened = await self._open_latest(name, site)
        while len(self._remembered) >= _REMEMBERED_MAX:
            self._remembered.pop(next(iter(self._remembered)))
        self._remembered[key] = (now, opened)
        return opened

    async def _open_latest(self, name: str, site: Site) -> Credential:
        tenant_id, organization_id = site.tenant_id, site.organization_id
        names = await self._objects.list_names(
            object_prefix(name), tenant_id=tenant_id, organization_id=organization_id
        )
        data = None
        if names:
            data = await self._objects.find_named(
                max(names), tenant_id=tenant_id, organization_id=organization_id
            )
        if data is None:
            raise ToolFailure(
                failure(
                    "config",
                    f"credential '{name}' is not registered: "
                    f"register it with `noetl credential put {name}`",
                )
            )
        return self._open(codec.decode_as(data, SealedCredential), site)

    def _open(self, sealed: SealedCredential, site: Site) -> Credential:
        try:
            fields = self._sealer.open(
                sealed, tenant_id=site.tenant_id, organization_id=site.organization_id
            )
        except SealBroken as problem:
            raise ToolFailure(failure("config", str(problem))) from problem
        self._mask.learn({key: fields[key] for key in fields if key not in _OPEN_FIELDS})
        return Credential(name=sealed.name, kind=sealed.kind, version=sealed.version, fields=fields)


# Values of these fields are addresses and names, which errors must be able to say.
_OPEN_FIELDS = frozenset(
    {
        *("type", "host", "port", "user", "username", "database", "sslmode", "header", "scope"),
        *("db_host", "db_port", "db_user", "db_name", "token_url", "client_id", "url"),
    }
)
