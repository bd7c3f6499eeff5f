"""The identity provider as the command line uses it: codes, device codes and refresh tokens.

RFC 6749 (code, refresh), RFC 7636 (challenge), RFC 8628 (device) and RFC 7009 (revocation) say what
is sent.
"""

import base64
import binascii
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct
from urllib3 import PoolManager, Timeout
from urllib3.exceptions import HTTPError

from noetl_chassis.clock import SystemClock
from noetl_cli.errors import CliError
from noetl_cli.identity import server_origin
from noetl_cli.identity.token_store import SignInRecord
from noetl_contracts import codec

DISCOVERY_PATH = "/.well-known/openid-configuration"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
ANSWER_S = 15.0
ANSWER_BYTES_MAX = 1024 * 1024
POLL_S_MAX = 30.0
CHALLENGE_METHOD = "S256"
ID_TOKEN = "id_token"  # noqa: S105 - the name of a field
LIFETIME_S_DEFAULT = 300.0
_SHOWN_CHARACTERS = 200
# The last second of the year 2999: later ends are mistakes.
_EPOCH_S_MAX = 32_503_679_999.0
_clock = SystemClock()

T = TypeVar("T")


class Metadata(Struct, frozen=True, kw_only=True):
    """What a provider says of itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    device_authorization_endpoint: str | None = None
    revocation_endpoint: str | None = None
    code_challenge_methods_supported: tuple[str, ...] = ()

    @property
    def takes_challenge(self) -> bool:
        """Tell whether a sign-in by code may be bound to who began it (RFC 7636)."""
        return CHALLENGE_METHOD in self.code_challenge_methods_supported


class TokenAnswer(Struct, frozen=True, kw_only=True):
    """What a provider gives; a refresh token only where one was asked for."""

    access_token: str = ""
    id_token: str = ""
    refresh_token: str = ""
    expires_in: float = 0.0


class DeviceAnswer(Struct, frozen=True, kw_only=True):
    """What a person does in a browser on any machine, and how often to ask whether it is done."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str = ""
    expires_in: float = 600.0
    interval: float = 5.0


class _ErrorAnswer(Struct, frozen=True, kw_only=True):
    error: str = ""
    error_description: str = ""


class ProviderRefusal(CliError):  # noqa: N818 - it is an answer, not a failure of the client
    """What a provider answers to a request that it does not serve; `code` is for programs."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(
            f"The identity provider refused: {(description or code)[:_SHOWN_CHARACTERS]}.",
            way_out="Sign in again: noetl login",
        )
        self.code = code


class ProviderClient:
    """One provider and one client of it."""

    def __init__(self, pool: PoolManager, metadata: Metadata, client_id: str) -> None:
        self._pool = pool
        self.metadata = metadata
        self.client_id = client_id

    def begin_device(
        self, *, scopes: list[str], audience: str, challenge: str | None = None
    ) -> DeviceAnswer:
        """Ask for a code that a person types in; raises `CliError`.

        RFC 8628 names no challenge. Keycloak demands it of a client that must use PKCE, and others
        ignore what they do not know (RFC 6749, 3.2).
        """
        endpoint = self.metadata.device_authorization_endpoint
        if endpoint is None:
            raise CliError(
                f"{self.metadata.issuer} has no sign-in for terminals.",
                way_out="Use a browser on this machine: noetl login --browser",
            )
        form = {"scope": " ".join(scopes), **_name_audience(audience)}
        if challenge is not None:
            form |= {"code_challenge": challenge, "code_challenge_method": CHALLENGE_METHOD}
        return self._post(endpoint, form, DeviceAnswer)

    def await_device(
        self, device: DeviceAnswer, *, audience: str, verifier: str | None = None
    ) -> TokenAnswer:
        """Ask until the person has signed in; raises `CliError` when that ends otherwise."""
        deadline = time.monotonic() + device.expires_in
        interval_s = min(max(device.interval, 0.1), POLL_S_MAX)
        form = {"grant_type": DEVICE_GRANT, "device_code": device.device_code}
        if verifier is not None:
            form["code_verifier"] = verifier
        while time.monotonic() < deadline:
            time.sleep(interval_s)
            try:
                return self._post(
                    self.metadata.token_endpoint,
                    {**form, **_name_audience(audience)},
                    TokenAnswer,
                )
            except ProviderRefusal as refusal:
                if refusal.code == "slow_down":
                    # RFC 8628, 3.5.
                    interval_s = min(interval_s + 5, POLL_S_MAX)
                elif refusal.code != "authorization_pending":
                    raise
        raise CliError("Nobody has entered the code in time.", way_out="Begin again: noetl login")

    def exchange_code(
        self, code: str, *, verifier: str, redirect_uri: str, audience: str
    ) -> TokenAnswer:
        """Return the tokens for a code; raises `CliError`."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": redirect_uri,
        }
        return self._post(
            self.metadata.token_endpoint, {**form, **_name_audience(audience)}, TokenAnswer
        )

    def refresh_tokens(self, refresh_token: str, *, audience: str) -> TokenAnswer:
        """Return new tokens; raises `CliError`."""
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
        return self._post(
            self.metadata.token_endpoint, {**form, **_name_audience(audience)}, TokenAnswer
        )

    def revoke_token(self, refresh_token: str) -> bool:
        """End a refresh token; False where the provider has no way to."""
        endpoint = self.metadata.revocation_endpoint
        if endpoint is None:
            return False
        form = {"token": refresh_token, "token_type_hint": "refresh_token"}
        self._send("POST", endpoint, {**form, "client_id": self.client_id})
        return True

    def build_authorization_address(self, query: dict[str, str], *, audience: str) -> str:
        """Write the address at which a browser signs in."""
        endpoint = self.metadata.authorization_endpoint
        whole = {**query, "client_id": self.client_id, **_name_audience(audience)}
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(whole)}"

    def _post(self, address: str, form: dict[str, str], kind: type[T]) -> T:
        data = self._send("POST", address, {**form, "client_id": self.client_id})
        return decode_answer(data, kind)

    def _send(self, method: str, address: str, form: dict[str, str]) -> bytes:
        return send_request(self._pool, method, address, form)


@contextmanager
def open_provider(issuer: str, client_id: str) -> Iterator[ProviderClient]:
    """Open a provider by its issuer; raises `CliError` for what is none."""
    check_private_way(issuer)
    timeout = Timeout(connect=ANSWER_S, read=ANSWER_S)
    with PoolManager(timeout=timeout) as pool:
        data = send_request(pool, "GET", f"{issuer.rstrip('/')}{DISCOVERY_PATH}", None)
        metadata = decode_answer(data, Metadata)
        if metadata.issuer != issuer:
            raise CliError(
                f"The identity provider at {issuer} calls itself {metadata.issuer[:200]!r}.",
                way_out="Tell the administrator of the server: its issuer is wrong.",
            )
        endpoints = (
            metadata.authorization_endpoint,
            metadata.token_endpoint,
            metadata.device_authorization_endpoint,
            metadata.revocation_endpoint,
        )
        for endpoint in endpoints:
            if endpoint is not None:
                check_private_way(endpoint)
        yield ProviderClient(pool, metadata, client_id)


def check_private_way(address: str) -> None:
    """Refuse what others could read along; raises `CliError`."""
    if not server_origin.is_private_way(address):
        raise CliError(
            f"{address[:_SHOWN_CHARACTERS]} is not https: others could read a token on its way.",
            way_out="Use the https address of the server.",
        )


def send_request(
    pool: PoolManager, method: str, address: str, form: dict[str, str] | None
) -> bytes:
    """Ask a provider; raises `CliError`, with its answer where it refuses."""
    options: dict[str, Any] = {}
    if form is not None:
        options["body"] = urlencode(form)
        options["headers"] = {"Content-Type": "application/x-www-form-urlencoded"}
    try:
        answer = pool.request(
            method, address, retries=False, redirect=False, preload_content=False, **options
        )
        data = answer.read(ANSWER_BYTES_MAX)
        answer.close()
    except HTTPError as error:
        raise CliError(
            f"The identity provider at {address[:_SHOWN_CHARACTERS]} does not answer: {error}.",
            way_out="Check the network, and try again.",
        ) from error
    if answer.status == HTTPStatus.OK:
        return data
    try:
        error_answer = codec.decode_as(data, _ErrorAnswer)
    except msgspec.MsgspecError:
        error_answer = _ErrorAnswer()
    raise ProviderRefusal(
        error_answer.error or f"status {answer.status}", error_answer.error_description
    )


def decode_answer(data: bytes, kind: type[T]) -> T:
    """Read what a provider answered; raises `CliError`."""
    try:
        return codec.decode_as(data, kind)
    except msgspec.MsgspecError as error:
        raise CliError(
            f"The identity provider answered what is not OpenID Connect: {error}.",
            way_out="Tell the administrator of the server: its issuer is wrong.",
        ) from error


def read_unverified_claims(token: str) -> dict[str, Any]:
    """Read what a token says, for display and for its nonce; the server verifies it."""
    parts = token.split(".")
    if len(parts) != 3:  # noqa: PLR2004 - header, payload, signature
        return {}
    try:
        data = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims: dict[str, Any] = codec.decode_as(data, dict[str, Any])
    except (binascii.Error, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return claims


def build_record(answer: TokenAnswer, before: SignInRecord) -> SignInRecord:
    """Keep what a provider gave, for what `before` says; raises `CliError` without a token."""
    is_id_token = before.token_kind == ID_TOKEN
    bearer = answer.id_token if is_id_token else answer.access_token
    if not bearer:
        raise CliError(
            f"The identity provider gave no {before.token_kind.replace('_', ' ')}.",
            way_out="Tell the administrator of the server: NOETL_PLANNER_OIDC_SCOPES",
        )
    return SignInRecord(
        bearer=bearer,
        expires_s=_read_end_s(bearer, answer),
        # A provider that does not rotate gives none the next time.
        refresh_token=answer.refresh_token or before.refresh_token,
        issuer=before.issuer,
        client_id=before.client_id,
        token_kind=before.token_kind,
        audience=before.audience,
    )


def _read_end_s(bearer: str, answer: TokenAnswer) -> float:
    """Return when a token ends: as it says itself, else as its provider says."""
    end_s = read_unverified_claims(bearer).get("exp")
    if isinstance(end_s, int | float):
        return min(float(end_s), _EPOCH_S_MAX)
    return _clock.now().timestamp() + (answer.expires_in or LIFETIME_S_DEFAULT)


def _name_audience(audience: str) -> dict[str, str]:
    """Name the API that an access token is for (RFC 8707)."""
    return {"resource": audience} if audience else {}
