"""Sessions of browsers that begin with a token: by a code that opens one, or by the token itself.

A code goes into the fragment of an address, which browsers send to nobody; the console sends it
here once, and a session's cookie comes back.
"""

from http import HTTPStatus
from typing import Annotated

from litestar import Response, post
from litestar.params import JSONBody
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_planner.api.http.problems import AnyRequest, ApiError
from noetl_planner.api.http.service_groups import IdentityServices
from noetl_planner.api.http.services import Services
from noetl_planner.api.identity import sign_ins
from noetl_planner.api.identity.sign_ins import CookieJar
from noetl_planner.identity.openid.browser_sessions import CODE_S, SESSION_HOURS, TokenHolder

_PRIVATE = {"Cache-Control": "no-store"}


class SessionBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The code of `noetl open`; without one the request shows its token."""

    code: Annotated[str, Meta(max_length=200)] = ""


class SessionCode(Struct, frozen=True, kw_only=True):
    """A code that opens one session, within so many seconds."""

    code: str
    expires_in_s: int


class SessionBegun(Struct, frozen=True, kw_only=True):
    """That the browser has a session's cookie now."""

    signed_in: bool = True


@post("/auth/codes", tags=["sign-in"], status_code=HTTP_200_OK)
async def issue_code(services: Services, request: AnyRequest) -> Response[SessionCode]:
    """Make a code that signs a browser in as the holder of the token that this request shows."""
    browsers = sign_ins.get_browsers(services.identity)
    code = await browsers.sessions.issue_code(await _get_holder(services.identity, request))
    return Response(SessionCode(code=code, expires_in_s=CODE_S), headers=_PRIVATE)


@post("/auth/session", tags=["sign-in"], status_code=HTTP_200_OK)
async def begin_session(
    services: Services, request: AnyRequest, data: JSONBody[SessionBody | None] = None
) -> Response[SessionBegun]:
    """Give a browser a session for a code, or for the token that this request shows."""
    browsers = sign_ins.get_browsers(services.identity)
    code = "" if data is None else data.code
    if code:
        secret = await browsers.sessions.redeem_code(code)
    else:
        secret = await browsers.sessions.begin_session(
            await _get_holder(services.identity, request)
        )
    if secret is None:
        raise ApiError(
            HTTPStatus.UNAUTHORIZED,
            code="code_refused",
            detail=f"the code is unknown, was used before or is older than {CODE_S} s",
            hint="make another one: noetl open",
        )
    jar = CookieJar(is_secure=browsers.is_secure)
    # What the browser brought along is no session any more.
    await browsers.sessions.revoke_session(jar.read_session(request))
    cookie = jar.set_session(secret, age_s=SESSION_HOURS * 3600)
    return Response(SessionBegun(), cookies=[cookie], headers=_PRIVATE)


async def _get_holder(identity: IdentityServices, request: AnyRequest) -> TokenHolder:
    """Return whose token a request shows; raises a 401 where it shows none, else a 403."""
    token = request.headers.get("authorization", "")
    holder = await identity.authenticator.find_holder(token)
    if holder is not None:
        return holder
    raise ApiError(
        HTTPStatus.FORBIDDEN if token else HTTPStatus.UNAUTHORIZED,
        code="token_refused",
        detail="this needs the owner's token or an API key of a service account",
        hint="noetl open signs a browser in; people of a provider sign in at /auth/login",
    )


ROUTES = [issue_code, begin_session]
