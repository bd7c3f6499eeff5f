"""Other sites' pages: a browser must not carry their wishes to a planner on this machine."""

from http import HTTPStatus

from noetl_planner.http.problems import AnyRequest, ApiError

_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN = frozenset({"same-origin", "none"})


async def refuse_strangers(request: AnyRequest) -> None:
    """Refuse writes that a browser says come from another site's page; raises a 403."""
    site = request.headers.get("sec-fetch-site", "none")
    if request.method not in _HARMLESS and site not in _OWN:
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            code="cross_site",
            detail="a page of another site may not write here",
            hint="call the API from a program, or from the planner's own pages",
        )
