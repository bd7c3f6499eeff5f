"""Bearer tokens by client credentials, fetched when they are needed and kept until they expire."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_contracts import codec
from noetl_playbook.model import coercion
from noetl_worker.domain.failures import ToolFailure, build_error, classify_http_status
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.keychain.credential_vault import Credential, CredentialVault

FETCH_S = 30.0
_TOKENS_MAX = 1024
_LIFE_S = 300.0
_LIFE_MAX_S = 366 * 86_400.0
# A granted token must live long enough to be used.
_LIFE_MIN_S = 1.0
# A token is renewed before its end, for a request takes time too.
_MARGIN_SHARE = 0.1
_MARGIN_MAX_S = 30.0
_STATUS_ERROR = 400
_PUBLIC = frozenset({"token_type", "expires_in", "expires_at", "scope", "audience", "id"})


class FetchedResponse(Struct, frozen=True, kw_only=True):
    """An answer to a request of the worker's own."""

    status: int
    url: str
    body: bytes


class FetchRequest(Protocol):
    """Sends a request through the rules that hold for every task's."""

    async def __call__(
        self,
        fields: dict[str, Any],
        *,
        credential: Credential | None,
        site: UnitScope,
        timeout_s: float,
    ) -> FetchedResponse:
        """Return the answer; raises `ToolFailure` when there is none."""


class TokenGrant(Struct, frozen=True, kw_only=True):
    """What a server granted, and until when on the monotonic clock."""

    fields: dict[str, Any]
    expires_at: float


class BearerTokens:
    """The tokens of this worker's oauth2 credentials."""

    def __init__(self, *, fetch: FetchRequest, vault: CredentialVault, clock: Clock) -> None:
        self._fetch = fetch
        self._vault = vault
        self._clock = clock
        self._grant_by_key: dict[str, TokenGrant] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def get_bearer(self, credential: Credential, site: UnitScope) -> Credential:
        """Turn an oauth2 credential into a bearer one; raises `ToolFailure`."""
        key = _build_token_key(credential, site)
        async with self._locks.setdefault(key, asyncio.Lock()):
            token_grant = self._grant_by_key.get(key)
            if token_grant is None or self._clock.monotonic_s() >= token_grant.expires_at:
                token_grant = await self.request_token(credential, site)
                self._keep_grant(key, token_grant)
        return Credential(
            name=credential.name,
            kind="bearer",
            version=credential.version,
            fields={"token": token_grant.fields["token"]},
        )

    def _keep_grant(self, key: str, token_grant: TokenGrant) -> None:
        while len(self._grant_by_key) >= _TOKENS_MAX:
            oldest = next(iter(self._grant_by_key))
            del self._grant_by_key[oldest]
            self._locks.pop(oldest, None)
        self._grant_by_key[key] = token_grant

    async def request_token(self, credential: Credential, site: UnitScope) -> TokenGrant:
        """Request a new token of an oauth2 credential, past the cache; raises `ToolFailure`."""
        url = credential.fields.get("token_url")
        if not isinstance(url, str) or not url:
            text = f"credential '{credential.name}' is of type oauth2 and lacks token_url"
            raise ToolFailure(build_error("config", text))
        request = {"url": url, "method": "POST", "form": build_client_form(credential.fields)}
        return await self.request_grant(request, credential=None, site=site, entry=credential.name)

    async def request_grant(
        self,
        request: dict[str, Any],
        *,
        credential: Credential | None,
        site: UnitScope,
        entry: str,
    ) -> TokenGrant:
        """Ask a token endpoint; the grant's `token` is its access token."""
        grant = await self.fetch_json(request, credential=credential, site=site, entry=entry)
        if not isinstance(grant, dict) or not isinstance(grant.get("access_token"), str):
            text = f"'{entry}': {request['url']} answered without an access_token"
            raise ToolFailure(build_error("schema", text, source="http"))
        self._vault.learn_secrets(grant)
        life_s = _parse_life_s(grant.get("expires_in"))
        margin_s = min(_MARGIN_MAX_S, life_s * _MARGIN_SHARE)
        return TokenGrant(
            fields={**grant, "token": grant["access_token"]},
            expires_at=self._clock.monotonic_s() + max(life_s - margin_s, _LIFE_MIN_S),
        )

    async def fetch_json(
        self,
        request: dict[str, Any],
        *,
        credential: Credential | None,
        site: UnitScope,
        entry: str,
    ) -> Any:
        """Return the decoded body of an answer; its text never stands in an error."""
        answer = await self._fetch(request, credential=credential, site=site, timeout_s=FETCH_S)
        if answer.status >= _STATUS_ERROR:
            text = f"'{entry}': {answer.url} answered {answer.status}"
            raise ToolFailure(classify_http_status(answer.status, text, retry_after=None))
        try:
            return codec.decode_json(answer.body)
        except ValueError as problem:
            text = f"'{entry}': {answer.url} answered with something that is not JSON"
            raise ToolFailure(build_error("parse", text, source="http")) from problem


def _parse_life_s(value: Any) -> float:
    """Return how long a server says that it has granted something, if it says a time at all."""
    number = coercion.coerce_number(value)
    is_time = number is not None and 0 <= number <= _LIFE_MAX_S
    return float(number) if is_time and number is not None else _LIFE_S


def build_client_form(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Write the form of a client credentials grant."""
    form = {"grant_type": "client_credentials"}
    field_names = ("client_id", "client_secret", "scope", "audience")
    return form | {name: fields[name] for name in field_names if fields.get(name) is not None}


def is_public_field(name: str) -> bool:
    """Tell whether a field of a grant is no secret."""
    return name in _PUBLIC


def _build_token_key(credential: Credential, site: UnitScope) -> str:
    place = [site.tenant_id, site.organization_id, credential.name, credential.version]
    return codec.digest_hex(codec.encode_canonical([*place, credential.fields]))
