"""A playbook's keychain as one command sees it: entries resolved when they are first named."""

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from msgspec import Struct, convert, structs

from noetl_chassis.clock import Clock
from noetl_chassis.sealing import Sealer
from noetl_contracts import codec
from noetl_playbook import coercion
from noetl_playbook.expressions import TemplateError, compile_value
from noetl_playbook.keychain import NAME, TOKEN, KeychainView, KeyNeeded
from noetl_playbook.lookup import SafeCall
from noetl_playbook.model import KeychainEntry
from noetl_playbook.names import SEAL
from noetl_playbook.scope import Parts, Scope
from noetl_worker.domain import auth, sealed
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.masking import mapped
from noetl_worker.domain.sites import Site
from noetl_worker.keys import entries
from noetl_worker.keys.credential_vault import Credential
from noetl_worker.keys.entries import AT_HAND, KIND_ALIASES, Entry, Found, Sources
from noetl_worker.keys.tokens import is_public

_KEPT_MAX = 1024
# What an outside source gave without a term is asked for again after so long.
_LIFE_S = 300.0
_NEEDS_MAX = 100
_OWN_FIELDS = frozenset({"required", "scope", "auto_renew"})

# The entries that are being resolved on the way to this one.
_path: ContextVar[tuple[str, ...]] = ContextVar("keychain_path", default=())


class Kept:
    """What this worker has resolved from outside sources, for every command that may use it."""

    def __init__(self) -> None:
        self._found_by_key: dict[str, Found] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, key: str) -> asyncio.Lock:
        """Return the lock under which one asker resolves for all."""
        return self._locks.setdefault(key, asyncio.Lock())

    def find(self, key: str) -> Found | None:
        """Return what is kept, however old."""
        return self._found_by_key.get(key)

    def keep(self, key: str, found: Found) -> None:
        """Keep an entry, forgetting the oldest when there are too many."""
        self._found_by_key.pop(key, None)
        while len(self._found_by_key) >= _KEPT_MAX:
            oldest = next(iter(self._found_by_key))
            del self._found_by_key[oldest]
            self._locks.pop(oldest, None)
        self._found_by_key[key] = found


class Keyring(Struct, frozen=True, kw_only=True):
    """Everything that resolving secrets for templates needs besides the command."""

    sources: Sources
    sealer: Sealer
    kept: Kept
    clock: Clock
    template_env: Mapping[str, str]


class About(Struct, frozen=True, kw_only=True):
    """The command that a keychain belongs to, as far as its entries may depend on it."""

    site: Site
    parent_execution_id: str | None
    catalog_id: str | None
    is_first: bool


class Keychain:
    """Gives templates their secrets; `supply` gets what a render has asked for."""

    def __init__(
        self, definitions: list[dict[str, Any]], *, keyring: Keyring, about: About
    ) -> None:
        self._entries = {entry.name: entry for entry in convert(definitions, list[KeychainEntry])}
        self._keyring = keyring
        self._about = about
        self._names: Mapping[str, Any] = {}
        self._parts = Parts()
        self._ready: dict[str, Found] = {}
        self._tokens: dict[str, tuple[str, float]] = {}

    def names(self) -> dict[str, Any]:
        """Give the names by which templates reach secrets."""
        return {
            NAME: KeychainView(self._entries.keys(), self._find),
            TOKEN: SafeCall(self._find_token),
            SEAL: SafeCall(self.seal),
        }

    @property
    def _site(self) -> Site:
        # It is not kept: two that know each other are garbage that only the collector finds.
        return structs.replace(self._about.site, keychain=self)

    def bind(
        self, names: Mapping[str, Any], workload: Mapping[str, Any], *, is_lenient: bool
    ) -> None:
        """Say what the entries' own templates may name besides the keychain's names."""
        self._names = names
        self._parts = Parts(workload=workload, is_lenient=is_lenient)

    def seal(self, text: str) -> str:
        """Seal a text; one that is sealed stays as it is."""
        if sealed.SEALED.fullmatch(text):
            return text
        self._keyring.sources.vault.learn(text)
        site = self._about.site
        return self._keyring.sealer.seal_text(
            text, tenant_id=site.tenant_id, organization_id=site.organization_id
        )

    def opened(self, value: Any) -> Any:
        """Open what is sealed inside a value, on its way into a tool; raises `ToolFailure`."""
        return sealed.opened(value, self._open) if sealed.is_inside(value) else value

    def _open(self, text: str) -> str:
        return self._keyring.sources.vault.open_text(text, self._site)

    def kept_safe(self, value: Any, *, is_secret: bool) -> Any:
        """Seal the texts of a value that is about to become state, where they hold secrets."""
        mask = self._keyring.sources.vault.mask

        if not is_secret and not mask.holds(codec.text(value)):
            return value
        return mapped(
            value,
            lambda text: self.seal(text) if text and (is_secret or mask.holds(text)) else text,
            change_key=mask.text,
        )

    async def require(self) -> None:
        """Resolve the entries that must be there from the start; raises `ToolFailure`."""
        if self._about.is_first:
            for name, entry in self._entries.items():
                if coercion.boolean(entry.fields.get("required")):
                    await self._resolve(name)

    async def supply(self, needed: KeyNeeded) -> None:
        """Get what a render has asked for; raises `ToolFailure`."""
        if needed.kind == "keychain":
            await self._resolve(needed.name)
            return
        vault, tokens = self._keyring.sources.vault, self._keyring.sources.tokens
        credential = await vault.resolve(needed.name, self._site)
        if credential.kind == "oauth2":
            credential = await tokens.bearer(credential, self._site)
        token = credential.fields.get("token")
        if not isinstance(token, str):
            text = f"credential '{needed.name}' of type '{credential.kind}' has no token"
            raise ToolFailure(failure("config", text))
        # Long enough for the render that asked; the next one asks again.
        self._tokens[needed.name] = (token, self._now() + 1.0)

    async def credential(self, name: str) -> Credential | None:
        """Return an entry as a credential, None when there is no such entry."""
        if name not in self._entries:
            return None
        found = await self._resolve(name)
        kind = found.kind or auth.kind_of(found.fields)
        return Credential(name=name, kind=kind, version=0, fields=found.fields)

    def _find(self, name: str) -> Mapping[str, Any]:
        found = self._ready.get(name)
        if found is None or self._is_over(found, self._entries[name]):
            raise KeyNeeded("keychain", name)
        return found.fields

    def _find_token(self, name: Any) -> str:
        token, until = self._tokens.get(str(name), ("", 0.0))
        if self._now() >= until:
            raise KeyNeeded("token", str(name))
        return token

    def _now(self) -> float:
        return self._keyring.clock.monotonic()

    def _is_over(self, found: Found, entry: KeychainEntry) -> bool:
        if found.expires_at is None or self._now() < found.expires_at:
            return False
        # Without a wish to renew, an execution goes on with what it has.
        return bool(coercion.boolean(entry.fields.get("auto_renew"))) or _scope(entry) != "local"

    async def _resolve(self, name: str) -> Found:
        found = self._ready.get(name)
        entry = self._entries[name]
        if found is not None and not self._is_over(found, entry):
            return found
        way = _path.get()
        if name in way:
            text = f"keychain entries depend on each other: {' -> '.join([*way, name])}"
            raise ToolFailure(failure("config", text))
        token = _path.set((*way, name))
        try:
            rendered = Entry(name=name, kind=entry.kind, fields=await self._rendered(entry))
            found = await self._found(rendered, entry)
        finally:
            _path.reset(token)
        self._ready[name] = found
        return found

    async def _rendered(self, entry: KeychainEntry) -> dict[str, Any]:
        fields = {key: item for key, item in entry.fields.items() if key not in _OWN_FIELDS}
        scope = Scope({**self._names, **self.names()}, self._parts)
        for _ in range(_NEEDS_MAX):
            try:
                found: dict[str, Any] = self.opened(compile_value(fields).render(scope))
            except KeyNeeded as needed:
                await self.supply(needed)
            except TemplateError as error:
                place = ".".join(map(str, error.path))
                text = f"keychain entry '{entry.name}', field '{place}': {error}"
                raise ToolFailure(failure("template", text)) from error
            else:
                return found
        text = f"keychain entry '{entry.name}' names more than {_NEEDS_MAX} secrets"
        raise ToolFailure(failure("limit", text))

    async def _found(self, rendered: Entry, entry: KeychainEntry) -> Found:
        keyring = self._keyring
        if KIND_ALIASES.get(entry.kind, entry.kind) in AT_HAND:
            return self._learned(await self._ask(rendered))
        key = self._key(rendered, entry)
        async with keyring.kept.lock(key):
            found = keyring.kept.find(key)
            if found is None or self._is_over(found, entry):
                found = await self._ask(rendered)
                if found.expires_at is None:
                    found = Found(
                        fields=found.fields, kind=found.kind, expires_at=self._now() + _LIFE_S
                    )
                keyring.kept.keep(key, found)
        return self._learned(found)

    async def _ask(self, rendered: Entry) -> Found:
        return await entries.find(rendered, sources=self._keyring.sources, site=self._site)

    def _learned(self, found: Found) -> Found:
        secrets = {key: item for key, item in found.fields.items() if not is_public(key)}
        self._keyring.sources.vault.learn(secrets)
        return found

    def _key(self, rendered: Entry, entry: KeychainEntry) -> str:
        """Say who may use what is resolved: this execution, its family, or the playbook."""
        about = self._about
        match _scope(entry):
            case "global":
                place: str | None = f"catalog/{about.catalog_id}"
            case "shared":
                place = about.parent_execution_id or about.site.execution_id
            case _:
                place = about.site.execution_id
        owner = [about.site.tenant_id, about.site.organization_id, _scope(entry), place]
        return codec.digest(
            codec.canonical([*owner, rendered.name, rendered.kind, rendered.fields])
        )


def _scope(entry: KeychainEntry) -> str:
    return str(entry.fields.get("scope") or "local")
