"""The authenticator: turns what a request shows into a principal, or refuses it."""

import hmac
import secrets
from datetime import datetime
from http.cookies import CookieError, SimpleCookie

import structlog
from msgspec import Struct, structs

from noetl_chassis.clock import Clock
from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_contracts.identity.actors import ActorKind, Via
from noetl_contracts.identity.role_bindings import (
    LOCAL_ISSUER,
    ApiKey,
    PersonGroups,
    SubjectKind,
)
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.lru_cache import LruCache
from noetl_planner.identity.openid import browser_sessions
from noetl_planner.identity.openid.browser_sessions import (
    KEY_ISSUER,
    OWNER_ISSUER,
    BrowserSessionsPort,
    SessionPerson,
    TokenHolder,
)
from noetl_planner.identity.openid.refusals import PROVIDER_FAULTS, TokenRefused
from noetl_planner.identity.openid.sign_in import SignIn
from noetl_planner.identity.principals import Principal
from noetl_storage.ports.identity_ports import Identities

SCHEME = "bearer "
TOKEN_CHARACTERS_MAX = 16 * 1024
KEY_SCHEME = "noetl_"
_PREFIX_BYTES = 6
_SECRET_BYTES = 32
_PREFIX_CHARACTERS = len(KEY_SCHEME) + 2 * _PREFIX_BYTES
# A key's last use is written at most so often.
USE_WRITTEN_EVERY_S = 60.0
_KNOWN_GROUPS_MAX = 4096

log = structlog.get_logger(__name__)


class NotSignedIn(Exception):  # noqa: N818 - it is an answer
    """Nobody is proved: what was shown is missing, wrong or over."""

    def __init__(self, code: str, detail: str, hint: str, *, is_forbidden: bool = False) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint
        self.is_forbidden = is_forbidden


class NobodyCanSignIn(Permanent):
    """The API asks who calls it, and nothing is set up by which anybody could tell."""


class Evidence(Struct, frozen=True, kw_only=True):
    """What a request shows of who sends it."""

    authorization: str = ""
    cookies: str = ""
    # The token against forged requests, empty where none was sent; None where nothing is written.
    csrf_token: str | None = None
    via: Via = Via.API


def digest_token(token: str) -> str:
    """Return what settings hold of the owner's token instead of it: its SHA-256 in hexadecimal."""
    return codec.digest_hex(token.encode())


class Authenticator:
    """Knows the owner's token, API keys, provider's tokens and sessions, as far as there are any.

    With `is_off` everybody is let in as an anonymous owner; the settings allow that on loopback
    alone.
    """

    def __init__(
        self,
        identities: Identities,
        clock: Clock,
        *,
        owner_digest: str = "",
        owner_name: str = "owner",
        is_off: bool = False,
        sign_in: SignIn | None = None,
        browsers: BrowserSessionsPort | None = None,
    ) -> None:
        self._identities = identities
        self._clock = clock
        self._owner_digest = owner_digest
        self._owner_name = owner_name
        self.is_off = is_off
        self._sign_in = sign_in
        self.browsers = browsers if sign_in is None else browsers or sign_in.browsers
        self._use_written_at: dict[str, datetime] = {}
        self._session_keys = LruCache[str, tuple[ApiKey, float]](
            entries_max=browser_sessions.KNOWN_MAX
        )
        self._known_groups = LruCache[tuple[str, str], PersonGroups](entries_max=_KNOWN_GROUPS_MAX)

    async def authenticate_request(self, evidence: Evidence) -> Principal | None:
        """Return who asks, None where nothing was shown; raises `NotSignedIn`."""
        if evidence.authorization:
            return await self._read_authorization(evidence)
        if evidence.cookies and self.browsers is not None:
            principal = await self._read_session(self.browsers, evidence)
            if principal is not None:
                return principal
        return _build_anonymous(evidence.via) if self.is_off else None

    async def _read_authorization(self, evidence: Evidence) -> Principal:
        header = evidence.authorization
        token = header[len(SCHEME) :].strip()
        if header[: len(SCHEME)].lower() != SCHEME or not token:
            raise NotSignedIn(
                "authorization_unknown",
                "the Authorization header holds no bearer token",
                "send Authorization: Bearer TOKEN",
            )
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise NotSignedIn(
                "token_too_large",
                f"the token has more than {TOKEN_CHARACTERS_MAX} characters",
                "ask the provider for fewer groups in its tokens",
            )
        if self._is_owner(token):
            return self._build_owner(evidence.via)
        prefix = find_key_prefix(token)
        if prefix is not None:
            return await self._read_key(token, prefix, evidence.via)
        if self._sign_in is None:
            raise NotSignedIn(
                "token_unknown",
                "the token is neither an API key nor the owner's token",
                "noetl up writes the owner's token; an administrator makes keys: noetl key create",
            )
        principal = await _read_token(self._sign_in, token, evidence.via)
        await self._note_groups(principal)
        return principal

    async def find_holder(self, authorization: str) -> TokenHolder | None:
        """Return who may begin a browser's session with the token of a header, or None.

        Nothing but the header counts: a session that was shown beside it begins no other one.
        """
        if not authorization:
            return None
        try:
            principal = await self._read_authorization(Evidence(authorization=authorization))
        except NotSignedIn:
            return None
        if principal.kind is ActorKind.OWNER:
            subject = self._name_owner_token()
            return TokenHolder(issuer=OWNER_ISSUER, subject=subject, name=principal.name)
        if principal.key_prefix and principal.kind is ActorKind.SERVICE_ACCOUNT:
            prefix = principal.key_prefix
            return TokenHolder(issuer=KEY_ISSUER, subject=prefix, name=principal.name)
        return None

    async def _read_session(
        self, browsers: BrowserSessionsPort, evidence: Evidence
    ) -> Principal | None:
        name = browser_sessions.name_session_cookie(is_secure=browsers.is_secure)
        secret = _find_cookie(evidence.cookies, name)
        person = await browsers.sessions.find_session(secret)
        principal = None if person is None else await self._identify_session(person)
        if person is None or principal is None:
            return None
        is_write = evidence.csrf_token is not None
        if is_write and not browser_sessions.is_csrf_token_right(person, evidence.csrf_token):
            raise NotSignedIn(
                "csrf_token",
                "a write with a session's cookie carries the session's token, and this has none",
                "send csrf_token of GET /auth/session as the header X-CSRF-Token",
                is_forbidden=True,
            )
        return principal

    async def _identify_session(self, person: SessionPerson) -> Principal | None:
        """Return whose session it is; None once the token that it began with is no good."""
        if person.issuer == OWNER_ISSUER:
            if person.subject != self._name_owner_token():
                return None
            return structs.replace(self._build_owner(Via.CONSOLE), expires_at=person.expires_at)
        if person.issuer == KEY_ISSUER:
            key = await self._find_session_key(person.subject)
            if key is None or not key.is_valid_at(self._clock.now()):
                return None
            ends = [end for end in (key.expires_at, person.expires_at) if end is not None]
            return structs.replace(_build_account(key, Via.CONSOLE), expires_at=min(ends))
        if self._sign_in is None:
            return None
        principal = Principal(
            kind=ActorKind.PERSON,
            id=person.subject,
            name=person.name,
            issuer=person.issuer,
            via=Via.CONSOLE,
            groups=person.groups,
            groups_at=person.begun_at,
            expires_at=person.expires_at,
        )
        await self._note_groups(principal)
        return principal

    async def _find_session_key(self, prefix: str) -> ApiKey | None:
        """Return the key that a session began with: one that was revoked, for seconds at most."""
        now_s = self._clock.monotonic_s()
        key, known_s = self._session_keys.find_value(prefix) or (None, 0.0)
        if key is not None and now_s - known_s < browser_sessions.KNOWN_S:
            return key
        key = await self._identities.find_key(prefix)
        if key is None:
            self._session_keys.drop_value(prefix)
        else:
            self._session_keys.keep_value(prefix, (key, now_s))
        return key

    def _name_owner_token(self) -> str:
        """Name the owner's token of now by a digest of its digest."""
        return digest_token(self._owner_digest)[:16] if self._owner_digest else "none"

    def _build_owner(self, via: Via) -> Principal:
        return Principal(
            kind=ActorKind.OWNER,
            id=self._owner_name,
            name=self._owner_name,
            via=via,
            has_all_roles=True,
        )

    def _is_owner(self, token: str) -> bool:
        return bool(self._owner_digest) and hmac.compare_digest(
            digest_token(token), self._owner_digest
        )

    async def _read_key(self, token: str, prefix: str, via: Via) -> Principal:
        found = await self._identities.find_key_roles(prefix)
        key = None if found is None else found.key
        now = self._clock.now()
        if found is None or key is None or not is_key_of(token, key) or not key.is_valid_at(now):
            # One answer for all three: which of them it is says something of the key.
            raise NotSignedIn(
                "key_refused",
                f"the API key {prefix}... is unknown, revoked or over",
                "ask an administrator for another one: noetl key create",
            )
        await self._note_use(prefix, now)
        return structs.replace(_build_account(key, via), bindings=found.bindings)

    async def _note_use(self, prefix: str, now: datetime) -> None:
        written_at = self._use_written_at.get(prefix)
        if written_at is not None and (now - written_at).total_seconds() < USE_WRITTEN_EVERY_S:
            return
        self._use_written_at[prefix] = now
        await self._identities.note_key_use(prefix, now)

    async def _note_groups(self, principal: Principal) -> None:
        """Keep the groups of who signed in: what they leave running is checked without them."""
        name = (principal.issuer, principal.id)
        known = self._known_groups.find_value(name)
        seen_at = principal.groups_at or self._clock.now()
        if known is not None and (
            known.seen_at >= seen_at
            or (principal.groups_at is None and _has_same_groups(known, principal))
        ):
            return
        groups = PersonGroups(
            issuer=name[0], subject=name[1], groups=principal.groups, seen_at=seen_at
        )
        await self._identities.put_groups(groups)
        self._known_groups.keep_value(name, groups)


def _find_cookie(header: str, name: str) -> str | None:
    """Return a cookie of a `Cookie` header; of one that is malformed there is none."""
    try:
        morsel = SimpleCookie(header).get(name)
    except CookieError:
        return None
    return None if morsel is None else morsel.value


async def _read_token(sign_in: SignIn, token: str, via: Via) -> Principal:
    try:
        person = await sign_in.verifier.verify_token(token)
    except TokenRefused as refusal:
        if refusal.code in PROVIDER_FAULTS:
            raise
        raise NotSignedIn(refusal.code, refusal.detail, refusal.hint) from refusal
    return Principal(
        kind=ActorKind(person.kind),
        id=person.subject,
        name=person.name,
        issuer=person.issuer,
        via=via,
        groups=person.groups,
        groups_at=person.issued_at,
        expires_at=person.expires_at,
    )


def _has_same_groups(known: PersonGroups, principal: Principal) -> bool:
    """Tell whether a token has the groups that are kept of its person."""
    return known.groups == principal.groups


def _build_account(key: ApiKey, via: Via) -> Principal:
    is_worker = key.account_kind == SubjectKind.WORKER
    return Principal(
        kind=ActorKind.WORKER if is_worker else ActorKind.SERVICE_ACCOUNT,
        id=key.account,
        name=key.account,
        issuer=LOCAL_ISSUER,
        via=via,
        key_prefix=key.key_prefix,
        maker=key.known_maker,
        home=(TenantId(key.tenant_id), OrganizationId(key.organization_id)),
        expires_at=key.expires_at,
    )


def _build_anonymous(via: Via) -> Principal:
    return Principal(
        kind=ActorKind.ANONYMOUS, id="anonymous", name="anonymous", via=via, has_all_roles=True
    )


def make_key() -> str:
    """Make a new API key: its scheme, a prefix by which it is found, and 256 random bits."""
    prefix = secrets.token_hex(_PREFIX_BYTES)
    return f"{KEY_SCHEME}{prefix}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def find_key_prefix(key: str) -> str | None:
    """Return the part of a key by which it is found, None for what is no API key."""
    is_key = key.startswith(KEY_SCHEME) and key[_PREFIX_CHARACTERS : _PREFIX_CHARACTERS + 1] == "_"
    return key[:_PREFIX_CHARACTERS] if is_key else None


def digest_key(key: str) -> bytes:
    """Return what is stored of a key instead of it."""
    return codec.digest_bytes(key.encode())


def is_key_of(key: str, api_key: ApiKey) -> bool:
    """Tell whether a key is the one that was stored; takes the same time for any other."""
    return hmac.compare_digest(digest_key(key), api_key.digest)
