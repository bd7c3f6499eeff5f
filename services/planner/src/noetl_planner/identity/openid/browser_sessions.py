"""Sessions of browsers: a secret in a cookie, its digest in the store, twelve hours at most."""

import hmac
from datetime import datetime, timedelta

from msgspec import Struct

from noetl_chassis import identity
from noetl_chassis.clock import Clock
from noetl_contracts import codec
from noetl_contracts.identity.role_bindings import Session
from noetl_contracts.lru_cache import LruCache
from noetl_planner.identity.openid.token_claims import VerifiedPerson
from noetl_storage.ports.registry_ports import Sessions

SESSION_HOURS = 12
SESSION_COOKIE = "noetl_session"
# Browsers take a cookie of such a name only from this host, by https, for all its paths
# (RFC 6265bis, 4.1.3): neither another host of the domain nor a plain connection can set it.
SECURE_PREFIX = "__Host-"
# A session that another process revoked is known here for so long.
KNOWN_S = 5.0
KNOWN_MAX = 1024
FORGOTTEN_MAX = 100
_SECRET_CHARACTERS = 64
# Issuers of sessions that begin with a token instead of a sign-in; no provider has such a name.
OWNER_ISSUER, KEY_ISSUER = "noetl:owner", "noetl:key"
CODE_S = 60
_CODE_PURPOSE = "noetl console code v1:"
_CSRF_PURPOSE = b"noetl csrf token v1"


class SessionPerson(Struct, frozen=True, kw_only=True):
    """A person who signed in with a browser.

    `csrf_token` is what a write of this session carries as X-CSRF-Token; `session_id` names the
    session in histories, and opens nothing.
    """

    issuer: str
    subject: str
    name: str
    email: str
    groups: tuple[str, ...]
    expires_at: datetime
    begun_at: datetime
    session_id: str
    csrf_token: str


class TokenHolder(Struct, frozen=True, kw_only=True):
    """Who holds the owner's token (`OWNER_ISSUER`) or an API key (`KEY_ISSUER`).

    `subject` names the token without opening anything: a session ends with its token.
    """

    issuer: str
    subject: str
    name: str
    email: str = ""
    groups: tuple[str, ...] = ()


class BrowserSessions:
    """Begins, finds and ends sessions."""

    def __init__(self, store: Sessions, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known_by_digest = LruCache[str, tuple[Session, float]](entries_max=KNOWN_MAX)

    async def begin_session(self, person: VerifiedPerson | TokenHolder) -> str:
        """Keep a new session, and return the secret for its cookie."""
        secret = identity.mint_token() + identity.mint_token()
        length = timedelta(hours=SESSION_HOURS)
        await self._put_session(person, digest=_digest_secret(secret), length=length)
        return secret

    async def issue_code(self, holder: TokenHolder) -> str:
        """Return a code that begins one session of a token's holder, for a minute."""
        code = identity.mint_token() + identity.mint_token()
        length = timedelta(seconds=CODE_S)
        await self._put_session(holder, digest=_digest_code(code), length=length)
        return code

    async def redeem_code(self, code: str) -> str | None:
        """Begin the session of a code; None for one that is unknown, used or too old."""
        if len(code) != _SECRET_CHARACTERS or not code.isascii():
            return None
        now, digest = self._clock.now(), _digest_code(code)
        issued = await self._store.find_session(digest, now=now)
        # Revoked by one alone: of two that come with the same code, the other one gets nothing.
        if issued is None or not await self._store.revoke_session(digest, now=now):
            return None
        return await self.begin_session(
            TokenHolder(issuer=issued.issuer, subject=issued.subject, name=issued.name)
        )

    async def find_session(self, cookie: str | None) -> SessionPerson | None:
        """Return who a cookie's value belongs to, or None."""
        if cookie is None or len(cookie) != _SECRET_CHARACTERS or not cookie.isascii():
            return None
        session = await self._find_open(_digest_secret(cookie))
        if session is None:
            return None
        return SessionPerson(
            issuer=session.issuer,
            subject=session.subject,
            name=session.name,
            email=session.email,
            groups=session.groups,
            expires_at=session.expires_at,
            begun_at=session.created_at,
            session_id=session.session_hash[:16],
            csrf_token=_compute_csrf_token(cookie),
        )

    async def revoke_session(self, cookie: str | None) -> bool:
        """End a session; False when the value opens none."""
        if cookie is None or len(cookie) != _SECRET_CHARACTERS or not cookie.isascii():
            return False
        digest = _digest_secret(cookie)
        self._known_by_digest.drop_value(digest)
        return await self._store.revoke_session(digest, now=self._clock.now())

    async def revoke_person_sessions(self, issuer: str, subject: str) -> int:
        """End every session of a person; return how many were open."""
        self._known_by_digest.clear_values()
        return await self._store.revoke_person_sessions(issuer, subject, now=self._clock.now())

    async def _put_session(
        self, person: VerifiedPerson | TokenHolder, *, digest: str, length: timedelta
    ) -> None:
        now = self._clock.now()
        await self._store.forget_sessions(before=now, sessions_max=FORGOTTEN_MAX)
        await self._store.put_session(
            Session(
                session_hash=digest,
                issuer=person.issuer,
                subject=person.subject,
                name=person.name,
                email=person.email,
                groups=person.groups,
                created_at=now,
                expires_at=now + length,
            )
        )

    async def _find_open(self, digest: str) -> Session | None:
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        session, known_s = self._known_by_digest.find_value(digest) or (None, 0.0)
        if session is not None and now_s - known_s < KNOWN_S and session.expires_at > now:
            return session
        session = await self._store.find_session(digest, now=now)
        if session is None:
            self._known_by_digest.drop_value(digest)
            return None
        self._known_by_digest.keep_value(digest, (session, now_s))
        return session


class BrowserSessionsPort(Struct, frozen=True, kw_only=True):
    """The sessions of browsers, and whether these come by https, which names the cookies."""

    sessions: BrowserSessions
    is_secure: bool


def name_session_cookie(*, is_secure: bool) -> str:
    """Name the cookie that holds a session's secret."""
    return f"{SECURE_PREFIX}{SESSION_COOKIE}" if is_secure else SESSION_COOKIE


def is_csrf_token_right(person: SessionPerson, token: str | None) -> bool:
    """Tell whether a write comes from a page of ours; each write with a cookie must say so."""
    if token is None or not token.isascii():
        return False
    return hmac.compare_digest(person.csrf_token, token)


def _digest_secret(secret: str) -> str:
    return codec.digest_hex(secret.encode())


def _digest_code(code: str) -> str:
    """Return what is kept of a code; as a cookie the same text opens nothing."""
    return codec.digest_hex((_CODE_PURPOSE + code).encode())


def _compute_csrf_token(secret: str) -> str:
    """Make the token from the cookie's secret, which a page of another site cannot read."""
    return hmac.digest(secret.encode(), _CSRF_PURPOSE, "sha256").hex()
