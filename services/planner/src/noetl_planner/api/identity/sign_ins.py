"""Signing in and out with a browser, and how other clients may sign in."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.datastructures import Cookie
from litestar.params import FromQuery, QueryParameter
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import AnyRequest, ApiError
from noetl_planner.api.http.service_groups import IdentityServices
from noetl_planner.api.http.services import Services
from noetl_planner.identity.openid import browser_sessions
from noetl_planner.identity.openid.browser_sessions import (
    KEY_ISSUER,
    OWNER_ISSUER,
    SECURE_PREFIX,
    SESSION_COOKIE,
    SESSION_HOURS,
    BrowserSessionsPort,
    SessionPerson,
)
from noetl_planner.identity.openid.oidc_provider import ProviderMetadata
from noetl_planner.identity.openid.pending_sign_in import PENDING_S
from noetl_planner.identity.openid.refusals import TokenRefused
from noetl_planner.identity.openid.sign_in import CallbackQuery, SignIn

CSRF_HEADER = "x-csrf-token"
LOGIN_PATH = "/auth/login"
_OFFLINE = "offline_access"
# A code or a state in an address is neither kept by caches nor told to other sites.
_PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}

_PENDING = "noetl_sign_in"

CallbackText = Annotated[str, Meta(max_length=4096)]


class CookieJar(Struct, frozen=True, kw_only=True):
    """Reads and writes the cookies; on plain http, which only this machine has, without prefix."""

    is_secure: bool

    def read_session(self, request: Request[Any, Any, Any]) -> str | None:
        """Return the secret of a session that a browser sent."""
        return request.cookies.get(self._name_cookie(SESSION_COOKIE))

    def read_pending(self, request: Request[Any, Any, Any]) -> str | None:
        """Return the sign-in that a browser has begun."""
        return request.cookies.get(self._name_cookie(_PENDING))

    def set_session(self, secret: str, *, age_s: int) -> Cookie:
        """Give a browser its session."""
        return self._write_cookie(SESSION_COOKIE, secret, age_s)

    def set_pending(self, text: str, *, age_s: int) -> Cookie:
        """Give a browser the sign-in that it begins."""
        return self._write_cookie(_PENDING, text, age_s)

    def end_session(self) -> Cookie:
        """Take a browser's session away."""
        return self._write_cookie(SESSION_COOKIE, "", 0)

    def end_pending(self) -> Cookie:
        """Take a begun sign-in away."""
        return self._write_cookie(_PENDING, "", 0)

    def _name_cookie(self, name: str) -> str:
        return f"{SECURE_PREFIX}{name}" if self.is_secure else name

    def _write_cookie(self, name: str, value: str, age_s: int) -> Cookie:
        return Cookie(
            key=self._name_cookie(name),
            value=value,
            max_age=age_s,
            path="/",
            secure=self.is_secure,
            httponly=True,
            # The provider's redirection back is a navigation from another site.
            samesite="lax",
        )


class SessionView(Struct, frozen=True, kw_only=True):
    """Who is signed in; `csrf_token` goes with each write, as the header X-CSRF-Token."""

    issuer: str
    subject: str
    name: str
    email: str
    groups: list[str]
    expires_at: datetime
    csrf_token: str


class SignedOut(Struct, frozen=True, kw_only=True):
    """That the session has ended; `provider_logout_url` also ends the one at the provider."""

    provider_logout_url: str | None


class OidcConfig(Struct, frozen=True, kw_only=True):
    """What a client needs to sign somebody in: it sends `token` of the answer as its bearer token.

    `audience`, if there is one, is asked for as `resource` (RFC 8707). `has_device_flow` is None
    while the provider does not answer.
    """

    issuer: str
    client_id: str
    scopes: list[str]
    token: str
    audience: str | None
    has_device_flow: bool | None


class AuthConfig(Struct, frozen=True, kw_only=True):
    """How to sign in here; `browser_sign_in` is a path for browsers, if they may."""

    oidc: OidcConfig | None
    browser_sign_in: str | None


@get("/api/auth/config", tags=["sign-in"])
async def show_auth_config(services: Services) -> AuthConfig:
    """Say how to sign in here; anybody may ask."""
    sign_in = services.identity.sign_in
    if sign_in is None:
        return AuthConfig(oidc=None, browser_sign_in=None)
    return AuthConfig(
        oidc=await _build_oidc_config(sign_in),
        browser_sign_in=LOGIN_PATH if sign_in.config.public_url else None,
    )


@get(LOGIN_PATH, tags=["sign-in"], status_code=HTTPStatus.SEE_OTHER)
async def begin_sign_in(
    services: Services, next_path: Annotated[CallbackText, QueryParameter(name="next")] = "/"
) -> Response[None]:
    """Send a browser to the identity provider; `next` is a path here for when it is back."""
    sign_in = get_browser_sign_in(services.identity)
    sign_in_start = await sign_in.begin_sign_in(next_path)
    pending = build_cookie_jar(sign_in).set_pending(sign_in_start.cookie, age_s=PENDING_S)
    return _redirect_browser(sign_in_start.address, [pending])


@get("/auth/callback", tags=["sign-in"], status_code=HTTPStatus.SEE_OTHER)
async def finish_sign_in(
    services: Services,
    request: Request[Any, Any, Any],
    code: FromQuery[CallbackText] = "",
    state_text: Annotated[CallbackText, QueryParameter(name="state")] = "",
    error: FromQuery[CallbackText] = "",
    error_description: FromQuery[CallbackText] = "",
    iss: FromQuery[CallbackText | None] = None,
) -> Response[None]:
    """Take a browser back from the identity provider, and give it a new session."""
    sign_in = get_browser_sign_in(services.identity)
    jar = build_cookie_jar(sign_in)
    query = CallbackQuery(
        code=code, state=state_text, error=error, error_description=error_description, iss=iss
    )
    finished = await sign_in.finish_sign_in(query, jar.read_pending(request))
    # What a browser brought along, its own or another's, is no session any more.
    await sign_in.sessions.revoke_session(jar.read_session(request))
    session = jar.set_session(finished.session_secret, age_s=SESSION_HOURS * 3600)
    return _redirect_browser(finished.next_path, [session, jar.end_pending()])


@get("/auth/session", tags=["sign-in"])
async def show_session(
    services: Services, request: Request[Any, Any, Any]
) -> Response[SessionView]:
    """Say who is signed in with this browser."""
    person = await get_session_person(services.identity, request)
    view = SessionView(
        issuer=person.issuer,
        subject=person.subject,
        name=person.name,
        email=person.email,
        groups=list(person.groups),
        expires_at=person.expires_at,
        csrf_token=person.csrf_token,
    )
    return Response(view, headers=_PRIVATE)


@post("/auth/logout", tags=["sign-in"], status_code=HTTP_200_OK)
async def sign_out(services: Services, request: Request[Any, Any, Any]) -> Response[SignedOut]:
    """End this browser's session."""
    person = await get_session_person(services.identity, request)
    check_csrf_token(request, person)
    browsers = get_browsers(services.identity)
    jar = CookieJar(is_secure=browsers.is_secure)
    await browsers.sessions.revoke_session(jar.read_session(request))
    is_of_token = person.issuer in (OWNER_ISSUER, KEY_ISSUER)
    address = None
    if not is_of_token and services.identity.sign_in is not None:
        address = await services.identity.sign_in.find_provider_logout()
    return Response(
        SignedOut(provider_logout_url=address), cookies=[jar.end_session()], headers=_PRIVATE
    )


def get_browser_sign_in(identity: IdentityServices) -> SignIn:
    """Return how browsers sign in; raises a 404 where they do not."""
    sign_in = identity.sign_in
    if sign_in is None or not sign_in.config.public_url:
        raise _build_no_browsers_error()
    return sign_in


def get_browsers(identity: IdentityServices) -> BrowserSessionsPort:
    """Return the sessions of browsers; raises a 404 where there are none."""
    browsers = identity.authenticator.browsers
    if browsers is None:
        raise _build_no_browsers_error()
    return browsers


def _build_no_browsers_error() -> ApiError:
    return problems.build_not_found_error(
        "nobody signs in here with a browser",
        hint="set NOETL_PLANNER_OIDC_ISSUER, NOETL_PLANNER_OIDC_CLIENT_ID and"
        " NOETL_PLANNER_PUBLIC_URL",
    )


async def find_session_person(
    identity: IdentityServices, request: AnyRequest
) -> SessionPerson | None:
    """Return who a request's cookie belongs to, or None."""
    browsers = identity.authenticator.browsers
    if browsers is None:
        return None
    jar = CookieJar(is_secure=browsers.is_secure)
    return await browsers.sessions.find_session(jar.read_session(request))


async def get_session_person(identity: IdentityServices, request: AnyRequest) -> SessionPerson:
    """Return who is signed in; raises a 401 when nobody is."""
    get_browsers(identity)
    person = await find_session_person(identity, request)
    if person is None:
        raise ApiError(
            HTTPStatus.UNAUTHORIZED,
            code="signed_out",
            detail="this browser is not signed in, or its session has ended",
            hint=f"sign in at {LOGIN_PATH}?next=/",
        )
    return person


def check_csrf_token(request: AnyRequest, person: SessionPerson) -> None:
    """Admit a write of a session; raises a 403 without the session's token in its header."""
    if not browser_sessions.is_csrf_token_right(person, request.headers.get(CSRF_HEADER)):
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            code="csrf_token",
            detail="a write with a session's cookie carries the session's token, and this has none",
            hint="send csrf_token of GET /auth/session as the header X-CSRF-Token",
        )


def build_cookie_jar(sign_in: SignIn) -> CookieJar:
    """Say how cookies are named here."""
    return CookieJar(is_secure=sign_in.config.is_public_url_secure)


async def _build_oidc_config(sign_in: SignIn) -> OidcConfig:
    config = sign_in.config
    metadata = await _find_metadata(sign_in)
    offers_refresh = metadata is not None and _OFFLINE in metadata.scopes_supported
    scopes = [*config.scopes, *([_OFFLINE] if offers_refresh else [])]
    return OidcConfig(
        issuer=config.issuer,
        client_id=config.cli_client_id,
        scopes=list(dict.fromkeys(scopes)),
        token="access_token" if config.audiences else "id_token",
        audience=config.audiences[0] if config.audiences else None,
        has_device_flow=None
        if metadata is None
        else metadata.device_authorization_endpoint is not None,
    )


async def _find_metadata(sign_in: SignIn) -> ProviderMetadata | None:
    try:
        return await sign_in.provider.get_metadata()
    except TokenRefused:
        # How to sign in is known without the provider; it may be back when somebody does.
        return None


def _redirect_browser(address: str, cookies: list[Cookie]) -> Response[None]:
    return Response(
        None,
        status_code=HTTPStatus.SEE_OTHER,
        headers={"Location": address, **_PRIVATE},
        cookies=cookies,
    )


ROUTES = [show_auth_config, begin_sign_in, finish_sign_in, show_session, sign_out]
