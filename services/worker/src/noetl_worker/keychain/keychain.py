"""A playbook's keychain as one command sees it: entries resolved when they are first named."""

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from msgspec import Struct, convert, structs

from noetl_chassis.clock import Clock
from noetl_chassis.seals.credential_seal import CredentialSealer
from noetl_contracts import codec
from noetl_playbook.model import coercion
from noetl_playbook.model.language_names import SEAL
from noetl_playbook.model.playbook import KeychainEntry
from noetl_playbook.templates.expressions import TemplateError, compile_value
from noetl_playbook.templates.lookup import SafeCall
from noetl_playbook.templates.scope import ScopeParts, TemplateScope
from noetl_playbook.views.keychain import NAME, TOKEN, KeychainView, KeyNeeded
from noetl_worker.domain import auth, secret_mask
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.secret_mask import map_texts
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.keychain import entries
from noetl_worker.keychain.credential_vault import Credential
from noetl_worker.keychain.entries import (
    AT_HAND,
    KIND_ALIASES,
    EntrySources,
    RenderedEntry,
    ResolvedEntry,
)
from noetl_worker.keychain.tokens import is_public_field

_KEPT_MAX = 1024
# What an outside source gave without a term is asked for again after so long.
_LIFE_S = 300.0
_NEEDS_MAX = 100
_OWN_FIELDS = frozenset({"required", "scope", "auto_renew"})

# The entries that are being resolved on the way to this one.
_path: ContextVar[tuple[str, ...]] = ContextVar("keychain_path", default=())


class EntryCache:
    """What this worker has resolved from outside sources, for every command that may use it."""

    def __init__(self) -> None:
        self._found_by_key: dict[str, ResolvedEntry] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def get_lock(self, key: str) -> asyncio.Lock:
        """Return the lock under which one asker resolves for all."""
        return self._locks.setdefault(key, asyncio.Lock())

    def find_entry(self, key: str) -> ResolvedEntry | None:
        """Return what is kept, however old."""
        return self._found_by_key.get(key)

    def keep_entry(self, key: str, resolved_entry: ResolvedEntry) -> None:
        """Keep an entry, forgetting the oldest when there are too many."""
        self._found_by_key.pop(key, None)
        while len(self._found_by_key) >= _KEPT_MAX:
            oldest = next(iter(self._found_by_key))
            del self._found_by_key[oldest]
            self._locks.pop(oldest, None)
        self._found_by_key[key] = resolved_entry


class Keyring(Struct, frozen=True, kw_only=True):
    """Everything that resolving secrets for templates needs besides the command."""

    sources: EntrySources
    sealer: CredentialSealer
    entry_cache: EntryCache
    clock: Clock
    template_env: Mapping[str, str]


class KeychainOwner(Struct, frozen=True, kw_only=True):
    """The command that a keychain belongs to, as far as its entries may depend on it."""

    site: UnitScope
    parent_execution_id: str | None
    catalog_id: str | None
    is_first: bool


class Keychain:
    """Gives templates their secrets; `supply_secret` gets what a render has asked for."""

    def __init__(
        self, definitions: list[dict[str, Any]], *, keyring: Keyring, about: KeychainOwner
    ) -> None:
        self._entries = {entry.name: entry for entry in convert(definitions, list[KeychainEntry])}
        self._keyring = keyring
        self._about = about
        self._names: Mapping[str, Any] = {}
        self._parts = ScopeParts()
        self._ready: dict[str, ResolvedEntry] = {}
        self._tokens: dict[str, tuple[str, float]] = {}

    def build_template_names(self) -> dict[str, Any]:
        """Give the names by which templates reach secrets."""
        return {
            NAME: KeychainView(self._entries.keys(), self._get_fields),
            TOKEN: SafeCall(self._find_token),
            SEAL: SafeCall(self.seal_text),
        }

    @property
    def _unit_scope(self) -> UnitScope:
        # It is not kept: two that know each other are garbage that only the collector finds.
        return structs.replace(self._about.site, keychain=self)

    def bind_names(
        self, names: Mapping[str, Any], workload: Mapping[str, Any], *, is_lenient: bool
    ) -> None:
        """Say what the entries' own templates may name besides the keychain's names."""
        self._names = names
        self._parts = ScopeParts(workload=workload, is_lenient=is_lenient)

    def seal_text(self, text: str) -> str:
        """Seal a text; one that is sealed stays as it is."""
        if secret_mask.SEALED.fullmatch(text):
            return text
        self._keyring.sources.vault.learn_secrets(text)
        site = self._about.site
        return self._keyring.sealer.seal_text(
            text, tenant_id=site.tenant_id, organization_id=site.organization_id
        )

    def open_sealed(self, value: Any) -> Any:
        """Open what is sealed inside a value, on its way into a tool; raises `ToolFailure`."""
        return (
            secret_mask.open_sealed_texts(value, self._open_text)
            if secret_mask.has_sealed_text(value)
            else value
        )

    def _open_text(self, text: str) -> str:
        return self._keyring.sources.vault.open_text(text, self._unit_scope)

    def seal_secrets(self, value: Any, *, is_secret: bool) -> Any:
        """Seal the texts of a value that is about to become state, where they hold secrets."""
        mask = self._keyring.sources.vault.secret_mask

        if not is_secret and not mask.contains_secret(codec.encode_text(value)):
            return value
        return map_texts(
            value,
            lambda text: (
                self.seal_text(text) if text and (is_secret or mask.contains_secret(text)) else text
            ),
            change_key=mask.mask_text,
        )

    async def resolve_required(self) -> None:
        """Resolve the entries that must be there from the start; raises `ToolFailure`."""
        if self._about.is_first:
            for name, entry in self._entries.items():
                if coercion.coerce_boolean(entry.fields.get("required")):
                    await self._resolve_entry(name)

    async def supply_secret(self, request: KeyNeeded) -> None:
        """Get what a render has asked for; raises `ToolFailure`."""
        if request.kind == "keychain":
            await self._resolve_entry(request.name)
            return
        vault, tokens = self._keyring.sources.vault, self._keyring.sources.tokens
        credential = await vault.resolve_auth(request.name, self._unit_scope)
        if credential.kind == "oauth2":
            credential = await tokens.get_bearer(credential, self._unit_scope)
        token = credential.fields.get("token")
        if not isinstance(token, str):
            text = f"credential '{request.name}' of type '{credential.kind}' has no token"
            raise ToolFailure(build_error("config", text))
        # Long enough for the render that asked; the next one asks again.
        self._tokens[request.name] = (token, self._read_monotonic() + 1.0)

    async def find_credential(self, name: str) -> Credential | None:
        """Return an entry as a credential, None when there is no such entry."""
        if name not in self._entries:
            return None
        resolved_entry = await self._resolve_entry(name)
        kind = resolved_entry.kind or auth.infer_credential_kind(resolved_entry.fields)
        return Credential(name=name, kind=kind, version=0, fields=resolved_entry.fields)

    def _get_fields(self, name: str) -> Mapping[str, Any]:
        resolved_entry = self._ready.get(name)
        if resolved_entry is None or self._has_expired(resolved_entry, self._entries[name]):
            raise KeyNeeded("keychain", name)
        return resolved_entry.fields

    def _find_token(self, name: Any) -> str:
        token, until = self._tokens.get(str(name), ("", 0.0))
        if self._read_monotonic() >= until:
            raise KeyNeeded("token", str(name))
        return token

    def _read_monotonic(self) -> float:
        return self._keyring.clock.monotonic_s()

    def _has_expired(self, resolved_entry: ResolvedEntry, entry: KeychainEntry) -> bool:
        if resolved_entry.expires_at is None or self._read_monotonic() < resolved_entry.expires_at:
            return False
        # Without a wish to renew, an execution goes on with what it has.
        return (
            bool(coercion.coerce_boolean(entry.fields.get("auto_renew")))
            or _get_scope(entry) != "local"
        )

    async def _resolve_entry(self, name: str) -> ResolvedEntry:
        resolved_entry = self._ready.get(name)
        entry = self._entries[name]
        if resolved_entry is not None and not self._has_expired(resolved_entry, entry):
            return resolved_entry
        way = _path.get()
        if name in way:
            text = f"keychain entries depend on each other: {' -> '.join([*way, name])}"
            raise ToolFailure(build_error("config", text))
        token = _path.set((*way, name))
        try:
            rendered_entry = RenderedEntry(
                name=name, kind=entry.kind, fields=await self._render_fields(entry)
            )
            resolved_entry = await self._resolve_cached(rendered_entry, entry)
        finally:
            _path.reset(token)
        self._ready[name] = resolved_entry
        return resolved_entry

    async def _render_fields(self, entry: KeychainEntry) -> dict[str, Any]:
        fields = {key: item for key, item in entry.fields.items() if key not in _OWN_FIELDS}
        scope = TemplateScope({**self._names, **self.build_template_names()}, self._parts)
        for _ in range(_NEEDS_MAX):
            try:
                rendered_fields: dict[str, Any] = self.open_sealed(
                    compile_value(fields).render(scope)
                )
            except KeyNeeded as request:
                await self.supply_secret(request)
            except TemplateError as error:
                place = ".".join(map(str, error.path))
                text = f"keychain entry '{entry.name}', field '{place}': {error}"
                raise ToolFailure(build_error("template", text)) from error
            else:
                return rendered_fields
        text = f"keychain entry '{entry.name}' names more than {_NEEDS_MAX} secrets"
        raise ToolFailure(build_error("limit", text))

    async def _resolve_cached(
        self, rendered_entry: RenderedEntry, entry: KeychainEntry
    ) -> ResolvedEntry:
        keyring = self._keyring
        if KIND_ALIASES.get(entry.kind, entry.kind) in AT_HAND:
            return self._learn_secrets(await self._ask_sources(rendered_entry))
        key = self._build_cache_key(rendered_entry, entry)
        async with keyring.entry_cache.get_lock(key):
            resolved_entry = keyring.entry_cache.find_entry(key)
            if resolved_entry is None or self._has_expired(resolved_entry, entry):
                resolved_entry = await self._ask_sources(rendered_entry)
                if resolved_entry.expires_at is None:
                    resolved_entry = ResolvedEntry(
                        fields=resolved_entry.fields,
                        kind=resolved_entry.kind,
                        expires_at=self._read_monotonic() + _LIFE_S,
                    )
                keyring.entry_cache.keep_entry(key, resolved_entry)
        return self._learn_secrets(resolved_entry)

    async def _ask_sources(self, rendered_entry: RenderedEntry) -> ResolvedEntry:
        return await entries.resolve_entry(
            rendered_entry, sources=self._keyring.sources, site=self._unit_scope
        )

    def _learn_secrets(self, resolved_entry: ResolvedEntry) -> ResolvedEntry:
        secrets = {
            key: item for key, item in resolved_entry.fields.items() if not is_public_field(key)
        }
        self._keyring.sources.vault.learn_secrets(secrets)
        return resolved_entry

    def _build_cache_key(self, rendered_entry: RenderedEntry, entry: KeychainEntry) -> str:
        """Say who may use what is resolved: this execution, its family, or the playbook."""
        about = self._about
        match _get_scope(entry):
            case "global":
                place: str | None = f"catalog/{about.catalog_id}"
            case "shared":
                place = about.parent_execution_id or about.site.execution_id
            case _:
                place = about.site.execution_id
        owner = [about.site.tenant_id, about.site.organization_id, _get_scope(entry), place]
        return codec.digest_hex(
            codec.encode_canonical(
                [*owner, rendered_entry.name, rendered_entry.kind, rendered_entry.fields]
            )
        )


def _get_scope(entry: KeychainEntry) -> str:
    return str(entry.fields.get("scope") or "local")
