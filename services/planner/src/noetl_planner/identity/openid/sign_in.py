"""How people sign in here: by bearer token, and by a browser with a code and PKCE."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlencode

from msgspec import Struct

from noetl_chassis import identity
from noetl_chassis.clock import Clock
from noetl_chassis.seals import credential_seal
from noetl_planner.identity.openid import pending_sign_in, refusals, token_claims
from noetl_planner.identity.openid.browser_sessions import BrowserSessions, BrowserSessionsPort
from noetl_planner.identity.openid.oidc_provider import (
    CodeTokens,
    OidcProvider,
    open_provider_session,
)
from noetl_planner.identity.openid.oidc_settings import OidcSettings
from noetl_planner.identity.openid.pending_sign_in import PendingSigner
from noetl_planner.identity.openid.refusals import RefusalCode, TokenRefused
from noetl_planner.identity.openid.signing_keys import SigningKeys
from noetl_planner.identity.openid.token_claims import VerifiedPerson
from noetl_planner.identity.openid.token_verifier import TokenVerifier, TrustedIssuer
from noetl_storage.ports.registry_ports import Sessions

CALLBACK_PATH = "/auth/callback"
_SHOWN_CHARACTERS = 200


class BegunSignIn(Struct, frozen=True, kw_only=True):
    """Where a browser goes, and what it keeps until it is back."""

    address: str
    cookie: str


class CallbackQuery(Struct, frozen=True, kw_only=True):
    """What a provider sends a browser back with."""

    code: str = ""
    state: str = ""
    error: str = ""
    error_description: str = ""
    # The issuer, by RFC 9207.
    iss: str | None = None


class FinishedSignIn(Struct, frozen=True, kw_only=True):
    """Who signed in, the secret of the new session, and where the browser wanted to go."""

    person: VerifiedPerson
    session_secret: str
    next_path: str


class SignIn:
    """The provider of this deployment, its tokens, and the sessions that it leads to."""

    def __init__(
        self,
        *,
        config: OidcSettings,
        provider: OidcProvider,
        verifier: TokenVerifier,
        sessions: BrowserSessions,
        signer: PendingSigner,
        clock: Clock,
    ) -> None:
        self.config = config
        self.provider = provider
        self.verifier = verifier
        self.sessions = sessions
        self.browsers = BrowserSessionsPort(
            sessions=sessions, is_secure=config.is_public_url_secure
        )
        self._signer = signer
        self._clock = clock

    async def begin_sign_in(self, next_path: str) -> BegunSignIn:
        """Send a browser to the provider; raises `TokenRefused`."""
        now_s = self._clock.now().timestamp()
        pending = pending_sign_in.begin_pending(next_path, now_s=now_s)
        metadata = await self.provider.get_metadata()
        query = {
            "response_type": "code",
            "client_id": self.config.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(self.config.scopes),
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": identity.compute_challenge(pending.verifier),
            "code_challenge_method": "S256",
        }
        endpoint = metadata.authorization_endpoint
        separator = "&" if "?" in endpoint else "?"
        return BegunSignIn(
            address=f"{endpoint}{separator}{urlencode(query)}",
            cookie=self._signer.sign_pending(pending),
        )

    async def finish_sign_in(self, query: CallbackQuery, cookie: str | None) -> FinishedSignIn:
        """Take a browser back, and begin its session; raises `TokenRefused`.

        Nothing is asked of the provider before the answer is known to belong to this browser.
        """
        now_s = self._clock.now().timestamp()
        pending = self._signer.read_pending(cookie, state=query.state, now_s=now_s)
        await self._check_answer(query)
        tokens = await self.provider.exchange_code(
            query.code,
            verifier=pending.verifier,
            redirect_uri=self._redirect_uri,
            client_id=self.config.client_id,
            client_secret=self.config.client_secret,
        )
        person = await self._identify_person(tokens, nonce=pending.nonce)
        secret = await self.sessions.begin_session(person)
        return FinishedSignIn(person=person, session_secret=secret, next_path=pending.next_path)

    async def find_provider_logout(self) -> str | None:
        """Return where a browser also ends its session at the provider, or None.

        OpenID Connect RP-Initiated Logout 1.0, 2.
        """
        try:
            metadata = await self.provider.get_metadata()
        except TokenRefused:
            # Our own session has ended; without the provider there is nowhere else to go.
            return None
        if metadata.end_session_endpoint is None:
            return None
        query = {
            "client_id": self.config.client_id,
            "post_logout_redirect_uri": f"{self.config.public_url}/",
        }
        return f"{metadata.end_session_endpoint}?{urlencode(query)}"

    @property
    def _redirect_uri(self) -> str:
        return f"{self.config.public_url}{CALLBACK_PATH}"

    async def _check_answer(self, query: CallbackQuery) -> None:
        metadata = await self.provider.get_metadata()
        must_name = metadata.authorization_response_iss_parameter_supported
        if query.iss != self.config.issuer and (must_name or query.iss is not None):
            raise TokenRefused(
                RefusalCode.TOKEN_ISSUER,
                f"the answer comes from {(query.iss or 'nobody')[:_SHOWN_CHARACTERS]!r}, not"
                f" from {self.config.issuer}",
                hint="begin again at /auth/login",
            )
        if query.error or not query.code:
            why = query.error_description or query.error or "it sent no code"
            raise TokenRefused(
                RefusalCode.PROVIDER_REFUSED,
                f"the identity provider refused: {why[:_SHOWN_CHARACTERS]}",
                hint="begin again at /auth/login, or ask the provider's administrator",
            )

    async def _identify_person(self, tokens: CodeTokens, *, nonce: str) -> VerifiedPerson:
        claims, raw_claims = await self.verifier.verify_id_token(
            tokens.id_token,
            issuer=self.config.issuer,
            client_id=self.config.client_id,
            nonce=nonce,
        )
        claim = self.config.groups_claim
        groups = token_claims.find_groups(raw_claims, claim)
        if groups is None and tokens.access_token:
            more = await self.provider.fetch_userinfo(tokens.access_token)
            # OpenID Connect Core 1.0, 5.3.2: the answer may be another person's.
            if more.get("sub", claims.sub) != claims.sub:
                raise refusals.build_provider_malformed_error(
                    self.config.issuer, "told of another person than the one who signed in"
                )
            groups = token_claims.find_groups(more, claim)
        return token_claims.build_person(claims, groups or ())


@asynccontextmanager
async def open_sign_in(
    oidc: OidcSettings | None, *, secret_key: str, sessions: Sessions, clock: Clock
) -> AsyncIterator[SignIn | None]:
    """Open what signs people in; None where no issuer is named.

    The provider is asked when somebody signs in, so that the planner starts without it.
    """
    if oidc is None:
        yield None
        return
    async with open_provider_session() as http:
        provider = OidcProvider(http, oidc.issuer, clock)
        issuers = {
            oidc.issuer: TrustedIssuer(
                keys=SigningKeys(provider, clock),
                client_ids=frozenset({oidc.client_id, oidc.cli_client_id}),
                audiences=frozenset(oidc.audiences),
            )
        }
        for issuer in oidc.token_issuers:
            keys = SigningKeys(OidcProvider(http, issuer, clock), clock)
            issuers.setdefault(
                issuer, TrustedIssuer(keys=keys, audiences=frozenset(oidc.audiences))
            )
        yield SignIn(
            config=oidc,
            provider=provider,
            verifier=TokenVerifier(issuers, groups_claim=oidc.groups_claim, clock=clock),
            sessions=BrowserSessions(sessions, clock),
            signer=PendingSigner(credential_seal.decode_key(secret_key)),
            clock=clock,
        )
