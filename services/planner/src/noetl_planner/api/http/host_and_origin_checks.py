"""Checks of `Host` and `Origin`: a browser must not send requests of other sites' pages here.

What a browser says of a page's site (Fetch Metadata) it says to trustworthy addresses alone, so the
`Origin` of a write counts as well. And a page whose name was made to mean this address (DNS
rebinding) is of the same site as what it asks: a planner answers to names that nobody can give away
in public, and to those that it was told.
"""

from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import AnyRequest, ApiError
from noetl_planner.api.http.services import SERVICES

_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN = frozenset({"same-origin", "none"})
# Ends of names that no public server answers for (RFC 2606, 6761, 6762, 8375; `svc` and
# `cluster.local` are Kubernetes').
_PRIVATE_ENDS = (
    ".localhost",
    ".local",
    ".internal",
    ".home.arpa",
    ".test",
    ".svc",
)


async def check_host_and_origin(request: AnyRequest) -> None:
    """Refuse a name that is not the planner's with a 421, another site's writes with a 403."""
    host = request.headers.get("host", "")
    names: tuple[str, ...] = request.app.state[SERVICES].http_hosts
    if not is_own_host(host, names):
        raise ApiError(
            HTTPStatus.MISDIRECTED_REQUEST,
            code="unknown_host",
            detail=f"this planner does not go by the name {host[:200]!r}",
            hint="call it by its address, or name it in NOETL_PLANNER_HTTP_HOSTS",
        )
    if request.method not in _HARMLESS and _is_cross_site(request, host, names):
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            code="cross_site",
            detail="a page of another site may not write here",
            hint="call it from a program, or from a page of a name in NOETL_PLANNER_HTTP_HOSTS",
        )


@lru_cache(maxsize=256)
def is_own_host(host: str, names: tuple[str, ...]) -> bool:
    """Tell whether a request to this host may be meant for the planner; `names` may begin `*.`."""
    name = _parse_host_name(host)
    return name is not None and (_is_private_name(name) or _is_listed_name(name, names))


def _is_cross_site(request: AnyRequest, host: str, names: tuple[str, ...]) -> bool:
    if request.headers.get("sec-fetch-site", "none") not in _OWN:
        return True
    origin = request.headers.get("origin")
    if origin is None:
        return False
    where = urlsplit(origin).netloc
    name = _parse_host_name(where)
    return where != host and not (name is not None and _is_listed_name(name, names))


def _parse_host_name(host: str) -> str | None:
    """Return the name without the port; None for what is no host."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".").lower()
    except ValueError:
        return None


def _is_listed_name(name: str, names: tuple[str, ...]) -> bool:
    return any(
        name == item or (item.startswith("*.") and name.endswith(item[1:])) for item in names
    )


def _is_private_name(name: str) -> bool:
    if "." not in name and ":" not in name:
        return True
    if name.endswith(_PRIVATE_ENDS):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


async def check_request(request: AnyRequest) -> None:
    """Refuse what no route can serve: 400 for NUL; see `check_host_and_origin` for the rest."""
    await check_host_and_origin(request)
    if "\x00" in request.scope["path"] or _has_nul(request.scope["query_string"]):
        raise problems.build_bad_request_error(
            "the path or the query holds the character NUL, which no name here has",
            hint="leave it out",
        )


def _has_nul(query: bytes) -> bool:
    return b"%00" in query or b"\x00" in query
