"""Credentials by name: opened here, remembered for a moment, never passed on."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_chassis.seals.credential_seal import CredentialSealer, SealBroken
from noetl_contracts import codec
from noetl_contracts.credentials import (
    SealedCredential,
    build_object_prefix,
    is_path_allowed,
    split_allowed_paths,
)
from noetl_contracts.errors import Permanent, Retryable
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_worker.domain import auth as auth_forms
from noetl_worker.domain.auth import INLINE, InlineCredential
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.domain.unit_identity import UnitScope

Key = tuple[str, str, str]

REMEMBERED_S = 30.0
ABSENT_S = 1.0
# A credential that servers refuse over and over is looked up so often at most, in seconds.
RENEWED_S = 0.25
_REMEMBERED_MAX = 1024
# The versions that the call which runs has got, by the names of their credentials.
_USED_VERSIONS: ContextVar[dict[str, int] | None] = ContextVar("used_versions", default=None)


class Credential(Struct, frozen=True, kw_only=True):
    """An opened credential; `version` changes whenever its fields may have.

    Playbooks of the `allowed_paths` may use it; none named: all.
    """

    name: str
    kind: str
    version: int
    fields: dict[str, Any]
    allowed_paths: tuple[str, ...] = ()

    def find_text_field(self, *names: str) -> str | None:
        """Return the first of these fields that is there, as text; raises `ToolFailure`."""
        name = next((item for item in names if self.fields.get(item) is not None), None)
        if name is None:
            return None
        field = self.fields[name]
        if isinstance(field, dict | list):
            raise self.build_unusable_failure(f"has a '{name}' that is no text")
        return str(field)

    def note_server(self, problem: Exception, server: str) -> None:
        """Add to an error which server could not be opened, and by which credential."""
        problem.add_note(f"{server}{', ' if server else ''}credential '{self.name}'")

    def build_unusable_failure(self, reason: str) -> ToolFailure:
        """Make the error of a credential that cannot be used; `reason` ends its sentence."""
        return ToolFailure(build_error("config", f"credential '{self.name}' {reason}"))


class RememberedCredential(Struct, frozen=True, kw_only=True):
    """A credential and when it was looked up; None when there was none of that name."""

    credential: Credential | None
    looked_at: float


Look = Callable[[], Awaitable[Credential | None]]
# Calls a look until the store answers, or gives up with its last `Retryable`.
AskAgain = Callable[[Look], Awaitable[Credential | None]]


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


class CredentialVault:
    """Opens sealed credentials with the deployment's key."""

    def __init__(
        self,
        *,
        objects: NamedObjects,
        ask_again: AskAgain,
        sealer: CredentialSealer,
        mask: SecretMask,
        clock: Clock,
    ) -> None:
        self._objects = objects
        self._ask_again = ask_again
        self._sealer = sealer
        self._mask = mask
        self._clock = clock
        self._credential_by_key: dict[Key, RememberedCredential] = {}
        self._looking: dict[Key, asyncio.Lock] = {}

    @property
    def secret_mask(self) -> SecretMask:
        """Return the mask that knows every secret opened here."""
        return self._mask

    async def resolve_auth(self, auth: Any, site: UnitScope) -> Credential:
        """Return the credential that `auth` means; raises `ToolFailure`.

        A name is a stored credential's, else an entry's of the command's keychain.
        """
        meant = auth_forms.parse_auth(auth)
        if isinstance(meant, InlineCredential):
            self.learn_secrets(meant.fields)
            return Credential(name=INLINE, kind=meant.kind, version=0, fields=meant.fields)
        credential = await self._find_credential(meant.name, site)
        if credential is None and site.keychain is not None:
            credential = await site.keychain.find_credential(meant.name)
        if credential is None:
            raise _build_unregistered_failure(meant.name)
        return credential

    def forget_credential(self, name: str, site: UnitScope) -> None:
        """Forget what was looked up under a name, so that the next look asks the store."""
        self._credential_by_key.pop((site.tenant_id, site.organization_id, name), None)

    async def renew_credential(
        self, auth: Any, site: UnitScope, *, used_versions: dict[str, int]
    ) -> bool:
        """Tell whether a credential that a server refused has another version than the refused one.

        One caller looks and the others wait for it. A version that replaced the refused one within
        `RENEWED_S` of the last look is not seen yet. Raises `ToolFailure`.
        """
        meant = None if auth is None else auth_forms.parse_auth(auth)
        if meant is None or isinstance(meant, InlineCredential):
            return False
        refused_version = used_versions.get(meant.name)
        if refused_version is None:
            return False
        key = (site.tenant_id, site.organization_id, meant.name)
        async with self._looking.setdefault(key, asyncio.Lock()):
            remembered_credential = self._credential_by_key.get(key)
            if self._has_to_look(remembered_credential, refused_version):
                # While the store is away, the remembered one stays.
                remembered_credential = await self._look_up(meant.name, site, remembered_credential)
                self._remember_credential(key, remembered_credential)
        credential = None if remembered_credential is None else remembered_credential.credential
        return credential is not None and _check_path(credential, site).version != refused_version

    def _has_to_look(
        self, remembered_credential: RememberedCredential | None, refused_version: int
    ) -> bool:
        """Tell whether what is remembered may be what a server refused, and was not just read."""
        if remembered_credential is None:
            return True
        credential = remembered_credential.credential
        if credential is not None and credential.version != refused_version:
            return False
        return self._clock.monotonic_s() - remembered_credential.looked_at >= RENEWED_S

    def find_fresh(self, auth: Any, site: UnitScope) -> Credential | None:
        """Return a stored credential by its name, if it was looked up a moment ago."""
        if type(auth) is not str:
            return None
        remembered_credential = self._find_remembered((site.tenant_id, site.organization_id, auth))
        credential = None if remembered_credential is None else remembered_credential.credential
        return None if credential is None else _use_credential(credential, site)

    async def get_stored(self, name: str, site: UnitScope) -> Credential:
        """Return a stored credential; raises `ToolFailure` when there is none."""
        credential = await self._find_credential(name, site)
        if credential is None:
            raise _build_unregistered_failure(name)
        return credential

    def learn_secrets(self, value: Any) -> None:
        """Remember what is secret in a credential's fields, or in any other value."""
        if not isinstance(value, dict):
            self._mask.learn_secrets(value)
            return
        self._mask.learn_secrets({key: value[key] for key in value if key not in _OPEN_FIELDS})
        for text in value.values():
            password = _find_password(text) if isinstance(text, str) else ""
            self._mask.learn_secrets([password, unquote(password)])

    def open_text(self, sealed: str, site: UnitScope) -> str:
        """Open a sealed text and remember what it was; raises `ToolFailure`."""
        try:
            text = self._sealer.open_text(
                sealed, tenant_id=site.tenant_id, organization_id=site.organization_id
            )
        except SealBroken as problem:
            raise ToolFailure(build_error("config", str(problem))) from problem
        self._mask.learn_secrets(text)
        return text

    async def _find_credential(self, name: str, site: UnitScope) -> Credential | None:
        key = (site.tenant_id, site.organization_id, name)
        remembered_credential = self._find_remembered(key)
        if remembered_credential is None:
            # Many rows ask at the same moment; one of them looks.
            async with self._looking.setdefault(key, asyncio.Lock()):
                remembered_credential = self._find_remembered(key)
                if remembered_credential is None:
                    remembered_credential = await self._look_up(
                        name, site, self._credential_by_key.get(key)
                    )
                    self._remember_credential(key, remembered_credential)
        credential = remembered_credential.credential
        return None if credential is None else _use_credential(credential, site)

    def _find_remembered(self, key: Key) -> RememberedCredential | None:
        """Return what a look a moment ago has found, if there was one."""
        remembered_credential = self._credential_by_key.get(key)
        if remembered_credential is None:
            return None
        # A user who has just registered a missing credential should not have to wait.
        lasts_s = ABSENT_S if remembered_credential.credential is None else REMEMBERED_S
        return (
            remembered_credential
            if self._clock.monotonic_s() - remembered_credential.looked_at < lasts_s
            else None
        )

    def _remember_credential(self, key: Key, remembered_credential: RememberedCredential) -> None:
        while len(self._credential_by_key) >= _REMEMBERED_MAX:
            oldest = next(iter(self._credential_by_key))
            del self._credential_by_key[oldest]
            self._looking.pop(oldest, None)
        self._credential_by_key[key] = remembered_credential

    async def _look_up(
        self, name: str, site: UnitScope, remembered_credential: RememberedCredential | None
    ) -> RememberedCredential:
        """Open the latest version; while the store is away the known one stays good."""
        try:
            if remembered_credential is None:
                credential = await self._ask_again(lambda: self._open_latest(name, site))
            else:
                credential = await self._open_latest(name, site)
        except Retryable as problem:
            if remembered_credential is None:
                text = f"credential '{name}' cannot be read now: {problem}"
                raise ToolFailure(build_error("storage_access", text, source="store")) from problem
            credential = remembered_credential.credential
        except Permanent as problem:
            text = f"credential '{name}' cannot be read: {problem}"
            raise ToolFailure(build_error("config", text)) from problem
        return RememberedCredential(credential=credential, looked_at=self._clock.monotonic_s())

    async def _open_latest(self, name: str, site: UnitScope) -> Credential | None:
        tenant_id, organization_id = site.tenant_id, site.organization_id
        names = await self._objects.list_names(
            build_object_prefix(name), tenant_id=tenant_id, organization_id=organization_id
        )
        data = None
        if names:
            data = await self._objects.find_named(
                max(names), tenant_id=tenant_id, organization_id=organization_id
            )
        if data is None:
            return None
        return self._open_sealed(codec.decode_as(data, SealedCredential), site)

    def _open_sealed(self, sealed: SealedCredential, site: UnitScope) -> Credential:
        try:
            fields = self._sealer.open_credential(
                sealed, tenant_id=site.tenant_id, organization_id=site.organization_id
            )
        except SealBroken as problem:
            raise ToolFailure(build_error("config", str(problem))) from problem
        fields, allowed_paths = split_allowed_paths(fields)
        self.learn_secrets(fields)
        return Credential(
            name=sealed.name,
            kind=sealed.kind,
            version=sealed.version,
            fields=fields,
            allowed_paths=allowed_paths,
        )


@contextmanager
def record_used_versions() -> Iterator[dict[str, int]]:
    """Collect the versions that are handed out while the block runs, by credential."""
    used_versions: dict[str, int] = {}
    token = _USED_VERSIONS.set(used_versions)
    try:
        yield used_versions
    finally:
        _USED_VERSIONS.reset(token)


def _use_credential(credential: Credential, site: UnitScope) -> Credential:
    """Record a credential as used by the call; raises `ToolFailure` if its playbook may not."""
    used_versions = _USED_VERSIONS.get()
    if used_versions is not None:
        used_versions[credential.name] = credential.version
    return _check_path(credential, site)


def _check_path(credential: Credential, site: UnitScope) -> Credential:
    """Return a credential that the playbook may use; raises `ToolFailure`."""
    if is_path_allowed(site.path, credential.allowed_paths):
        return credential
    raise credential.build_unusable_failure(
        f"is not for playbook '{site.path}', but for {', '.join(credential.allowed_paths)}: "
        "an administrator allows it with `noetl credential put --allow-path`"
    )


def _find_password(text: str) -> str:
    """Find the password of an address; a text that is no address has none."""
    try:
        return urlsplit(text).password or ""
    except ValueError:
        return ""


def _build_unregistered_failure(name: str) -> ToolFailure:
    return ToolFailure(
        build_error(
            "config",
            f"credential '{name}' is not registered: register it with "
            f"`noetl credential put {name}`, or for a run with -r local write its fields below "
            f"'{name}:' in a file and add `--credentials FILE`",
        )
    )


# Values of these fields are addresses and names, which errors must be able to say.
_OPEN_FIELDS = frozenset(
    {
        *("type", "host", "port", "user", "username", "database", "sslmode", "header", "scope"),
        *("db_host", "db_port", "db_user", "db_name", "token_url", "client_id", "url"),
        *("name", "region", "endpoint", "bucket", "test_url"),
    }
)
