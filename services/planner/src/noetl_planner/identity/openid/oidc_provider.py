"""An OpenID Connect provider over HTTP: its description, its keys, and codes for tokens.

OpenID Connect Discovery 1.0, RFC 6749 (4.1.3) and RFC 7636 say what is sent and answered.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote_plus, urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_contracts import codec
from noetl_planner.identity.openid import refusals
from noetl_planner.identity.openid.oidc_settings import is_loopback_url
from noetl_planner.identity.openid.refusals import RefusalCode, TokenRefused

DISCOVERY_PATH = "/.well-known/openid-configuration"
ANSWER_S = 10.0
ANSWER_BYTES_MAX = 1024 * 1024
METADATA_FRESH_S = 3600.0
# After a failure nobody asks again for so long: each request would wait for the same.
FAILURE_PAUSE_S = 5.0
_SHOWN_CHARACTERS = 200

T = TypeVar("T")


class ProviderMetadata(Struct, frozen=True, kw_only=True):
    """What a provider says of itself; endpoints that it lacks are None."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    end_session_endpoint: str | None = None
    device_authorization_endpoint: str | None = None
    scopes_supported: tuple[str, ...] = ()
    # The default of the standard.
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class CodeTokens(Struct, frozen=True, kw_only=True):
    """What a provider gives for a code."""

    id_token: str
    access_token: str = ""


class _ProviderError(Struct, frozen=True, kw_only=True):
    error: str = ""
    error_description: str = ""


class OidcProvider:
    """One issuer; what it says of itself is kept for an hour."""

    def __init__(self, session: aiohttp.ClientSession, issuer: str, clock: Clock) -> None:
        self.issuer = issuer
        self._session = session
        self._clock = clock
        self._metadata: ProviderMetadata | None = None
        self._fetched_s = 0.0
        self._failure: TokenRefused | None = None
        self._failed_s = 0.0
        self._fetching = asyncio.Lock()

    async def get_metadata(self) -> ProviderMetadata:
        """Return the provider's description; raises `TokenRefused`, also for another's."""
        async with self._fetching:
            now_s = self._clock.monotonic_s()
            if self._metadata is not None and now_s - self._fetched_s < METADATA_FRESH_S:
                return self._metadata
            if self._failure is not None and now_s - self._failed_s < FAILURE_PAUSE_S:
                raise self._failure
            try:
                self._metadata = await self._fetch_metadata()
            except TokenRefused as failure:
                self._failure, self._failed_s = failure, now_s
                raise
            self._failure, self._fetched_s = None, now_s
            return self._metadata

    async def fetch_key_set(self) -> list[dict[str, Any]]:
        """Return the provider's public keys as they are now; raises `TokenRefused`."""
        metadata = await self.get_metadata()
        answer = await self._read_json(metadata.jwks_uri, dict[str, Any])
        keys = answer.get("keys")
        if not isinstance(keys, list):
            raise refusals.build_provider_malformed_error(self.issuer, "publishes no key set")
        return [key for key in keys if isinstance(key, dict)]

    async def exchange_code(
        self, code: str, *, verifier: str, redirect_uri: str, client_id: str, client_secret: str
    ) -> CodeTokens:
        """Return the tokens for a code, once; raises `TokenRefused`."""
        metadata = await self.get_metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = {}
        methods = metadata.token_endpoint_auth_methods_supported
        if client_secret and "client_secret_basic" in methods:
            # RFC 6749, 2.3.1: both parts are form-encoded first.
            named = aiohttp.encode_basic_auth(quote_plus(client_id), quote_plus(client_secret))
            headers["Authorization"] = named
        else:
            form |= {"client_id": client_id}
            form |= {"client_secret": client_secret} if client_secret else {}
        return await self._read_json(
            metadata.token_endpoint, CodeTokens, method="POST", data=form, headers=headers
        )

    async def fetch_userinfo(self, access_token: str) -> dict[str, Any]:
        """Return what the provider says of the person of a token; raises `TokenRefused`."""
        metadata = await self.get_metadata()
        if metadata.userinfo_endpoint is None:
            return {}
        headers = {"Authorization": f"Bearer {access_token}"}
        return await self._read_json(metadata.userinfo_endpoint, dict[str, Any], headers=headers)

    async def _fetch_metadata(self) -> ProviderMetadata:
        address = f"{self.issuer.rstrip('/')}{DISCOVERY_PATH}"
        metadata = await self._read_json(address, ProviderMetadata)
        if metadata.issuer != self.issuer:
            raise refusals.build_provider_malformed_error(
                self.issuer, f"calls itself {metadata.issuer[:_SHOWN_CHARACTERS]!r}"
            )
        endpoints = (
            metadata.authorization_endpoint,
            metadata.token_endpoint,
            metadata.jwks_uri,
            metadata.userinfo_endpoint,
            metadata.end_session_endpoint,
            metadata.device_authorization_endpoint,
        )
        named = [endpoint for endpoint in endpoints if endpoint is not None]
        if not all(_is_safe_address(endpoint, self.issuer) for endpoint in named):
            raise refusals.build_provider_malformed_error(
                self.issuer, "names an endpoint that is not https"
            )
        return metadata

    async def _read_json(
        self, address: str, kind: type[T], *, method: str = "GET", **options: Any
    ) -> T:
        try:
            async with self._session.request(
                method, address, allow_redirects=False, **options
            ) as answer:
                body = await _read_bounded(answer.content)
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as failure:
            raise refusals.build_provider_unreachable_error(
                self.issuer, str(failure)[:_SHOWN_CHARACTERS] or type(failure).__name__
            ) from failure
        if body is None:
            raise refusals.build_provider_malformed_error(
                self.issuer, f"answered more than {ANSWER_BYTES_MAX} bytes"
            )
        if status != HTTPStatus.OK:
            raise self._build_status_error(status, body)
        try:
            return codec.decode_as(body, kind)
        except msgspec.MsgspecError as failure:
            raise refusals.build_provider_malformed_error(
                self.issuer, f"answered what is not OpenID Connect: {failure}"
            ) from failure

    def _build_status_error(self, status: int, body: bytes) -> TokenRefused:
        if status not in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            return refusals.build_provider_unreachable_error(self.issuer, f"status {status}")
        try:
            provider_error = codec.decode_as(body, _ProviderError)
        except msgspec.MsgspecError:
            provider_error = _ProviderError()
        why = provider_error.error_description or provider_error.error or f"status {status}"
        return TokenRefused(
            RefusalCode.PROVIDER_REFUSED,
            f"the identity provider refused: {why[:_SHOWN_CHARACTERS]}",
            hint="sign in again; a code is good once and for a short time",
        )


async def _read_bounded(content: aiohttp.StreamReader) -> bytes | None:
    """Return a whole answer; None for one that is too long."""
    parts, length = [], 0
    async for part in content.iter_any():
        length += len(part)
        if length > ANSWER_BYTES_MAX:
            return None
        parts.append(part)
    return b"".join(parts)


def _is_safe_address(address: str, issuer: str) -> bool:
    """Tell whether an endpoint may be asked: by https, or on this machine as its issuer is."""
    if urlsplit(address).scheme == "https":
        return True
    return is_loopback_url(address) and is_loopback_url(issuer)


@asynccontextmanager
async def open_provider_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Open the connections to identity providers."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
        yield session
