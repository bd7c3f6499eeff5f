"""Signs a person in at the provider that a server names, and keeps the tokens for that server."""

import webbrowser
from typing import Any

import msgspec
from msgspec import Struct

from noetl_chassis import identity
from noetl_cli import settings, terminal_output
from noetl_cli.errors import CliError
from noetl_cli.identity import (
    loopback_redirect,
    provider_client,
    server_origin,
    token_store,
)
from noetl_cli.identity.provider_client import ProviderClient, TokenAnswer
from noetl_cli.identity.token_store import SignInRecord
from noetl_contracts import codec

CONFIG_PATH = "/api/auth/config"


class ServerSignIn(Struct, frozen=True, kw_only=True):
    """How a server says to sign in."""

    issuer: str
    client_id: str
    scopes: list[str]
    token: str
    audience: str | None = None


class SignedIn(Struct, frozen=True, kw_only=True):
    """Who signed in, as the token says, and where it is kept."""

    server: str
    issuer: str
    name: str
    kept_in: str
    expires_s: float


def read_server_sign_in(config: dict[str, Any], server: str) -> ServerSignIn:
    """Read how a server signs people in; raises `CliError` where it does not."""
    oidc = config.get("oidc")
    if oidc is None:
        raise CliError(
            f"{server} names no identity provider.",
            way_out="Use an API key: NOETL_API_KEY, or noetl context add NAME --sign-in key",
        )
    try:
        return codec.convert_value(oidc, ServerSignIn)
    except msgspec.MsgspecError as error:
        raise CliError(
            f"{server} does not say how to sign in: {error}.",
            way_out="Check the address: --server, or NOETL_SERVER.",
        ) from error


def sign_person_in(
    server: str, server_sign_in: ServerSignIn, *, with_browser: bool, environ: dict[str, str]
) -> SignedIn:
    """Sign a person in, and keep the tokens for this server; raises `CliError`."""
    provider_client.check_private_way(server)
    origin = server_origin.parse_origin(server)
    with provider_client.open_provider(server_sign_in.issuer, server_sign_in.client_id) as provider:
        if with_browser or provider.metadata.device_authorization_endpoint is None:
            answer = _sign_in_with_browser(provider, server_sign_in, environ)
        else:
            answer = _sign_in_with_code(provider, server_sign_in, environ)
    empty = SignInRecord(
        issuer=server_sign_in.issuer,
        client_id=server_sign_in.client_id,
        token_kind=server_sign_in.token,
        audience=server_sign_in.audience or "",
    )
    record = provider_client.build_record(answer, empty)
    store = token_store.open_token_store(environ)
    with store.hold_lock():
        kept_in = store.put_record(origin, record)
    return SignedIn(
        server=origin,
        issuer=server_sign_in.issuer,
        name=_read_name(answer),
        kept_in=kept_in,
        expires_s=record.expires_s,
    )


def sign_person_out(server: str, environ: dict[str, str]) -> bool:
    """Forget a server's sign-in, and end it at its provider; False when there was none."""
    origin = server_origin.parse_origin(server)
    store = token_store.open_token_store(environ)
    with store.hold_lock():
        record = store.find_record(origin)
        store.remove_record(origin)
    if record is None:
        return False
    if record.refresh_token:
        _revoke_at_provider(record)
    return True


def _revoke_at_provider(record: SignInRecord) -> None:
    try:
        with provider_client.open_provider(record.issuer, record.client_id) as provider:
            is_ended = provider.revoke_token(record.refresh_token)
    except CliError as error:
        terminal_output.print_note(f"Forgotten here, and not ended there: {error.message}")
        return
    if not is_ended:
        terminal_output.print_note(f"{record.issuer} ends the sign-in by itself, later.")


def _sign_in_with_code(
    provider: ProviderClient, server_sign_in: ServerSignIn, environ: dict[str, str]
) -> TokenAnswer:
    audience = server_sign_in.audience or ""
    verifier = _mint_verifier() if provider.metadata.takes_challenge else None
    device = provider.begin_device(
        scopes=server_sign_in.scopes,
        audience=audience,
        challenge=None if verifier is None else identity.compute_challenge(verifier),
    )
    address = device.verification_uri_complete or device.verification_uri
    terminal_output.print_note(f"Open   {device.verification_uri}")
    terminal_output.print_note(f"Enter  {device.user_code}")
    _open_browser(address, environ)
    return provider.await_device(device, audience=audience, verifier=verifier)


def _sign_in_with_browser(
    provider: ProviderClient, server_sign_in: ServerSignIn, environ: dict[str, str]
) -> TokenAnswer:
    state, nonce = identity.mint_token(), identity.mint_token()
    verifier = _mint_verifier()
    audience = server_sign_in.audience or ""
    with loopback_redirect.open_redirect(state) as redirect:
        query = {
            "response_type": "code",
            "redirect_uri": redirect.redirect_uri,
            "scope": " ".join(server_sign_in.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": identity.compute_challenge(verifier),
            "code_challenge_method": provider_client.CHALLENGE_METHOD,
            # Providers give refresh tokens to those who consent (OpenID Connect Core 1.0, 11).
            "prompt": "consent",
        }
        address = provider.build_authorization_address(query, audience=audience)
        terminal_output.print_note(f"Open   {address}")
        _open_browser(address, environ)
        code = redirect.await_code(server_sign_in.issuer)
        answer = provider.exchange_code(
            code, verifier=verifier, redirect_uri=redirect.redirect_uri, audience=audience
        )
    if provider_client.read_unverified_claims(answer.id_token).get("nonce") != nonce:
        raise CliError(
            "The token belongs to another sign-in: its nonce differs.",
            way_out="Begin again: noetl login --browser",
        )
    return answer


def _mint_verifier() -> str:
    # RFC 7636, 4.1: from 43 to 128 characters.
    return identity.mint_token() + identity.mint_token()


def _open_browser(address: str, environ: dict[str, str]) -> None:
    """Show a page to the person, where there is a screen and the page is one of the web."""
    is_page = server_origin.is_private_way(address)
    if is_page and terminal_output.is_terminal() and settings.can_open_browser(environ=environ):
        webbrowser.open(address)


def _read_name(answer: TokenAnswer) -> str:
    claims = provider_client.read_unverified_claims(answer.id_token)
    named = claims.get("name") or claims.get("email") or claims.get("sub") or ""
    return terminal_output.flatten_text(str(named))
