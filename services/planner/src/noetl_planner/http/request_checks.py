"""What is asked of every request before its route sees it."""

from noetl_planner.http import origins, problems
from noetl_planner.http.problems import AnyRequest


async def check_request(request: AnyRequest) -> None:
    """Refuse what no route can serve: a 400 for NUL, and what `refuse_strangers` refuses."""
    await origins.refuse_strangers(request)
    if "\x00" in request.scope["path"] or _has_nul(request.scope["query_string"]):
        raise problems.refused(
            "the path or the query holds the character NUL, which no name here has",
            hint="leave it out",
        )


def _has_nul(query: bytes) -> bool:
    return b"%00" in query or b"\x00" in query
